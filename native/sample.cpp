// sample
