"""Linear algebra, Gaussians, cubature rules and Kalman recursions: arrays in, arrays out."""
