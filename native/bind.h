// Parts of the module, each in a bind_*.cpp of its own: with bind.cpp the only files that know Python.
#pragma once

#include <nanobind/nanobind.h>

void bind_matrix(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_sample(nanobind::module_& m);
void bind_vocab(nanobind::module_& m);
