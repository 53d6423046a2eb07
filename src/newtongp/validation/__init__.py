"""Checks of single values from users: numbers, flags, keys, file names, class names, time stamps."""
