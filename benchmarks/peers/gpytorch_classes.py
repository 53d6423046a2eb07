"""Digits by GPyTorch's variational GP with a softmax likelihood, by Adam."""

import numpy as np
from classes_task import DRAWS, LENGTHSCALE, VARIANCE, perform

STEPS, RATE = 1000, 0.02


def fit(task, data):
    import gpytorch
    import torch

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(task["cores"])
    classes = int(data["y"].max()) + 1
    x, inducing, new = (torch.tensor(data[name]) for name in ("x", "inducing", "new"))
    y = torch.tensor(data["y"].astype(np.int64))

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self):
            q = gpytorch.variational.CholeskyVariationalDistribution(len(inducing), batch_shape=torch.Size([classes]))
            strategy = gpytorch.variational.VariationalStrategy(self, inducing, q, learn_inducing_locations=False)
            super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=classes))
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.covar_module.outputscale = VARIANCE
            self.covar_module.base_kernel.lengthscale = LENGTHSCALE

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Model()
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=classes, mixing_weights=False)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    model.train()
    likelihood.train()
    for _ in range(STEPS):
        optimiser.zero_grad()
        (-bound(model(x), y)).backward()
        optimiser.step()

    def predict():
        model.eval()
        with torch.no_grad():
            latents = model(new)
            total = sum(
                torch.softmax(latents.rsample(torch.Size([100])), dim=-1).mean(dim=0) for _ in range(DRAWS // 100)
            )
        return (total / (DRAWS // 100)).numpy()

    return f"Adam, {STEPS} steps", predict


if __name__ == "__main__":
    perform(fit)
