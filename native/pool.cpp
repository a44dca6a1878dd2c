// pool
