"""The controller's gRPC server: calls in, answers and status codes out, authentication and permissions."""
