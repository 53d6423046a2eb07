"""The global half of inference: the conjugate posterior of a Gaussian prior and all sites."""
