"""One natural gradient step (NGD) of GPyTorch's variational GP on one batch."""

from common import serve, timed
from sparse_task import LENGTHSCALE, VARIANCE, batches, rows_of


def prepare(task):
    import gpytorch
    import torch

    torch.set_default_dtype(torch.float64)
    if not task.get("all_cores"):
        torch.set_num_threads(1)
    x, y, inducing = (torch.tensor(each) for each in rows_of(task))

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self):
            q = gpytorch.variational.NaturalVariationalDistribution(task["inducing"])
            super().__init__(
                gpytorch.variational.VariationalStrategy(self, inducing, q, learn_inducing_locations=False)
            )
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.covar_module.outputscale = VARIANCE
            self.covar_module.base_kernel.lengthscale = LENGTHSCALE

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, likelihood = Model(), gpytorch.likelihoods.BernoulliLikelihood()
    for parameter in model.covar_module.parameters():
        parameter.requires_grad_(False)
    optimiser = gpytorch.optim.NGD(model.variational_parameters(), num_data=len(x), lr=0.1)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    model.train()
    likelihood.train()
    given = batches(task, x, y)

    def run():
        for _ in range(task["steps"]):
            inputs, labels = next(given)
            optimiser.zero_grad()
            (-bound(model(inputs), labels)).backward()
            optimiser.step()

    return {"step": timed(run)}, {}


if __name__ == "__main__":
    serve(prepare)
