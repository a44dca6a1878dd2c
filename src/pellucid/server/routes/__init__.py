"""The routes, one file for each family; each only joins a schema, the service and a shape."""
