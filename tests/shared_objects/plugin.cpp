// SPDX-License-Identifier: Apache-2.0
// plugin.cpp - a shared object whose constructor calls back into the program that loads it.
extern "C" void in_constructor();

namespace {

struct caller {
    caller() { in_constructor(); }
} const calls;

}  // namespace
