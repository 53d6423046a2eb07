"""The distribution of y at a row: integrals over its latents, accurate whatever the widths of noise and latents."""
