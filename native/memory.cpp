// memory
