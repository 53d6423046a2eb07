"""Web pages about results: figures, tables and saved results in one folder, with an `index.html` to open."""

from .page import (
    Picture,
    Section,
    Table,
    calibration_picture,
    convergence_picture,
    folder_name,
    section_of,
    write_report,
)

__all__ = [
    "Picture",
    "Section",
    "Table",
    "calibration_picture",
    "convergence_picture",
    "folder_name",
    "section_of",
    "write_report",
]
