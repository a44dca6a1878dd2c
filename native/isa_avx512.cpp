// isa_avx512
