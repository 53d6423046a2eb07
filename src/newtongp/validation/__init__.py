"""What users give, checked one value at a time: numbers, flags, keys, file names, names of classes, time stamps."""
