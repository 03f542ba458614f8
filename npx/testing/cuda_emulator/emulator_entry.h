// The entry points of the emulator: for Python, which launches kernels, and for the calls that the compiler inserts
// before each load and store and after each operation that may be undefined. Included by cuda_names.h.
#pragma once
#include "emulator.h"

namespace emulator {

// Kernels are called with an array of pointers to their arguments; their signatures are available as text.

template <class P> struct Name { static const char* of() { return "?"; } };
template <class P> struct Name<const P> : Name<P> {};
template <class P> struct Name<P*> {
    static const char* of() {
        static char text[32];
        snprintf(text, sizeof text, "%s*", Name<P>::of());
        return text;
    }
};
#define NAME(P, TEXT) template <> struct Name<P> { static const char* of() { return TEXT; } }
NAME(bool, "bool"); NAME(signed char, "int8"); NAME(unsigned char, "uint8"); NAME(short, "int16");
NAME(unsigned short, "uint16"); NAME(int, "int32"); NAME(unsigned, "uint32"); NAME(long, "int64");
NAME(unsigned long, "uint64"); NAME(long long, "int64"); NAME(unsigned long long, "uint64"); NAME(float, "float32");
NAME(double, "float64");

template <int... I> struct Indices {};
template <class... P, int... I> UNCHECKED static void call(void (*f)(P...), void** args, Indices<I...>) { f(*(P*)args[I]...); }
template <class... P> UNCHECKED static void call(void (*f)(P...), void** args) { call(f, args, Indices<__integer_pack(sizeof...(P))...>()); }
template <class... P> static const char* signature(void (*)(P...)) {
    static char text[1024];
    text[0] = 0;
    const char* names[] = {Name<P>::of()..., ""};
    for (size_t i = 0; i < sizeof...(P); i++) strcat(strcat(text, i ? " " : ""), names[i]);
    return text;
}

struct Source { const char* file; unsigned line, column; };

}  // namespace emulator

#define EXPORT extern "C" __attribute__((visibility("default")))
#define EMULATED_KERNEL(NAME)                                                                     \
    EXPORT const char* signature_##NAME() { return emulator::signature(NAME); }                   \
    EXPORT int launch_##NAME(emulator::Launch* l) {                                               \
        return emulator::run(l, [](void** args) { emulator::call(NAME, args); });                 \
    }

#define HIDDEN extern "C" __attribute__((visibility("hidden")))
#define CHECK_ACCESS(NAME, SIZE, STORE)                                                           \
    HIDDEN UNCHECKED void __tsan_##NAME(void* p) { emulator::check_access(p, SIZE, STORE, __builtin_return_address(0)); }
#define CHECK_ACCESSES(SIZE)                                                                      \
    CHECK_ACCESS(read##SIZE, SIZE, false) CHECK_ACCESS(write##SIZE, SIZE, true)                   \
    CHECK_ACCESS(unaligned_read##SIZE, SIZE, false) CHECK_ACCESS(unaligned_write##SIZE, SIZE, true)
CHECK_ACCESSES(1) CHECK_ACCESSES(2) CHECK_ACCESSES(4) CHECK_ACCESSES(8) CHECK_ACCESSES(16)
HIDDEN UNCHECKED void __tsan_read_range(void* p, size_t n) { emulator::check_access(p, n, false, __builtin_return_address(0)); }
HIDDEN UNCHECKED void __tsan_write_range(void* p, size_t n) { emulator::check_access(p, n, true, __builtin_return_address(0)); }
HIDDEN UNCHECKED void __tsan_init() {}

#define UNDEFINED(NAME, TEXT)                                                                     \
    HIDDEN UNCHECKED void __ubsan_handle_##NAME(emulator::Source* at, ...) {                      \
        emulator::fail(0, "%s (%s:%u)", TEXT, at->file, at->line);                                \
    }
UNDEFINED(out_of_bounds, "indexes past the end of an array")
UNDEFINED(type_mismatch_v1, "uses a pointer that is null or not aligned for its type")
UNDEFINED(shift_out_of_bounds, "shifts by a negative count or by the width of the type or more")
UNDEFINED(add_overflow, "overflows a signed integer in an addition")
UNDEFINED(sub_overflow, "overflows a signed integer in a subtraction")
UNDEFINED(mul_overflow, "overflows a signed integer in a multiplication")
UNDEFINED(negate_overflow, "overflows a signed integer in a negation")
UNDEFINED(divrem_overflow, "divides an integer by zero")
UNDEFINED(vla_bound_not_positive, "makes an array of no positive length")
UNDEFINED(pointer_overflow, "computes an address that overflows")
UNDEFINED(load_invalid_value, "reads a bool that is neither true nor false")
UNDEFINED(float_cast_overflow, "converts a number to an integer type that cannot hold it")
UNDEFINED(builtin_unreachable, "reaches code marked as unreachable")
UNDEFINED(missing_return, "returns no value")
