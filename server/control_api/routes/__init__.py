"""The routes of the control API, one module for each kind of resource."""
