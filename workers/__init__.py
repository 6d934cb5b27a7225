"""The worker on a host with devices: the Celery app, the supervisor of attempts, the relay and the heartbeat."""
