"""Bound the work of a service: admission queue, limits and metering per tenant."""
