// isa_scalar
