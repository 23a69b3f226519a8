"""Routes of the control API that arrange data and check what a server has seen, one module for each resource."""
