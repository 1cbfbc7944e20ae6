"""Exchange with torchensemble (github.com/TorchEnsemble-Community/Ensemble-Pytorch); nothing else imports it."""
