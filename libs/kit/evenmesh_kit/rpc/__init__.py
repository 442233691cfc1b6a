"""Run a gRPC service and call others: server, guard, statuses, circuit breaker, hedging."""
