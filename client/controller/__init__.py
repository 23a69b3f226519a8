"""The controller's API over gRPC, on all of a cluster's nodes."""
