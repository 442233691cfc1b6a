"""Make the bundled models: training runs, evaluation, model cards."""
