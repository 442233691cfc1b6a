"""Makes what k8s/components/monitoring holds beside its rules: `python -m k8s.tools.monitoring`."""
