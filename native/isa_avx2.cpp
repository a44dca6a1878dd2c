// isa_avx2
