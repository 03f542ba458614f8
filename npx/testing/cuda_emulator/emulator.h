// A CUDA emulator on the CPU, for checking kernels without a GPU: `emulator.py` compiles a .cu file with this header
// and cuda_names.h in place of CUDA's own.
//
// Each CUDA thread is a fiber with its own stack. One operating-system thread runs the blocks one after another and,
// within a block, one fiber after another, in a selectable order, each until it returns or has to wait. `__syncthreads`
// lets the other fibers run until all have arrived. Warp operations exchange values through a table per warp.
//
// The compiler (-fsanitize=thread) inserts a call before every load and store. The call checks that
//   - the address is in an array of the launch, in shared memory or on a stack;
//   - a barrier separates two accesses to a byte by different threads of a block, unless both are reads;
//   - no block accesses a byte that another block writes. Atomic operations are exempt.
// Undefined behavior (-fsanitize=undefined: an index past a local array, a misaligned vector load, an overflow) is
// reported here too. Every error ends the launch with a message that names the block, the thread and the problem.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define UNCHECKED __attribute__((no_sanitize("thread", "undefined"), noinline))

struct uint3 { unsigned x, y, z; };

extern "C" {
extern char __start_npx_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_npx_shared[] __attribute__((weak, visibility("hidden")));
extern char __ehdr_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
}

namespace emulator {

enum State { READY, AT_BLOCK_BARRIER, AT_WARP_OPERATION, RETURNED };
enum Order { FORWARD, REVERSE, RANDOM };
const int MAX_THREADS = 1024, WARP = 32, MAX_ARGUMENTS = 64;
const int STATIC_SHARED = -1, DYNAMIC_SHARED = -2;  // instead of an argument index

struct Array {  // mirrored in emulator.py, like Launch
    char *start, *stop;
    int argument;
};

struct Launch {
    void** args;
    unsigned grid[3], block[3];
    Array* arrays;
    uint64_t n_arrays;
    char *shared, *stacks, *message;
    uint64_t shared_bytes, stack_bytes, message_bytes;
    int order;
    unsigned seed;
    uint64_t instruction;  // offset of the failing one in the library, or 0
};

struct Thread {
    uint3 index;
    int linear, warp, lane;
    bool started;
    State state;
    const char* file;  // source position at which it waits
    int line;
    unsigned mask;    // the lanes it waits for
    unsigned parity;  // the half of the warp's table that its next operation uses
    int copies;       // asynchronous copies to shared memory in flight
    jmp_buf context;
    ucontext_t start;
};

struct Accesses {  // the last accesses to a byte, with the block barriers and warp operations that preceded them
    unsigned write_epoch, write_operation, read_epoch, read_operation;
    short writer, reader;  // a thread; a reader may also be SEVERAL + warp, or SEVERAL_WARPS
};
struct Region {
    char *start, *stop;
    int argument;
    Accesses* accesses;
};
const short SEVERAL = 2000, SEVERAL_WARPS = 4000;

static Launch* launch;
static void (*kernel)(void**);
static Thread threads[MAX_THREADS];
static Thread* current;
static uint3 the_block, the_grid, the_block_size;
static int n_threads, n_warps;
static unsigned epoch, first_epoch;               // block barriers passed in total, and at the start of this block
static unsigned operations[MAX_THREADS / WARP];   // warp operations passed by each warp
static unsigned lanes_waiting[MAX_THREADS / WARP], lanes_returned[MAX_THREADS / WARP];
static int votes[2];
static unsigned votes_epoch[2];
static Region regions[MAX_ARGUMENTS + 2];  // the arrays, static and dynamic shared memory
static int n_regions;
static jmp_buf scheduler;
static bool failed;
static uint64_t random_state;

// The value that a lane shows to the other lanes of its warp. Successive operations alternate between two halves of the
// table, so that one synchronization per operation is enough.
struct alignas(16) LaneValue { unsigned char bytes[64]; };
static LaneValue lane_values[MAX_THREADS / WARP][2][WARP];

UNCHECKED static void yield_thread() {
    if (!_setjmp(current->context)) _longjmp(scheduler, 1);
}

UNCHECKED static void fail(const void* instruction, const char* format, ...) {
    char* out = launch->message;
    size_t space = launch->message_bytes;
    if (current) {
        int n = snprintf(out, space, "thread (%u, %u, %u) of block (%u, %u, %u) ", current->index.x, current->index.y,
                         current->index.z, the_block.x, the_block.y, the_block.z);
        out += n, space -= n;
    }
    va_list rest;
    va_start(rest, format);
    vsnprintf(out, space, format, rest);
    va_end(rest);
    launch->instruction = instruction ? (char*)instruction - __ehdr_start : 0;
    failed = true;
    if (current) yield_thread();
}

UNCHECKED static char* dynamic_shared() { return launch->shared; }

// Loads and stores

UNCHECKED static const char* name_of(const Region* r) {
    static char text[64];
    if (r->argument < 0) return r->argument == STATIC_SHARED ? "static shared memory" : "dynamic shared memory";
    snprintf(text, sizeof text, "argument %d", r->argument);
    return text;
}

UNCHECKED static Region* region_of(const char* p, size_t size) {
    for (Region* r = regions; r < regions + n_regions; r++)
        if (p >= r->start && p + size <= r->stop) return r;
    return 0;
}

UNCHECKED static bool is_shared(const void* p) {
    Region* r = region_of((const char*)p, 1);
    return r && r->argument < 0;
}

UNCHECKED static void fail_outside(const char* p, size_t size, const char* what, const void* instruction) {
    const Region* near = 0;
    int64_t nearest = 1 << 20;  // bytes; an access farther away is not attributed to an array
    for (Region* r = regions; r < regions + n_regions; r++) {
        int64_t after = p + size - r->stop, before = r->start - p, distance = after > before ? after : before;
        if (distance < nearest) nearest = distance, near = r;
    }
    if (!near) fail(instruction, "%s %zu bytes at address %p, far from all arrays", what, size, p);
    fail(instruction, "%s %zu bytes at byte %lld of %s, which has %lld bytes", what, size, (long long)(p - near->start),
         name_of(near), (long long)(near->stop - near->start));
}

UNCHECKED static void fail_unordered(const Region* r, const Accesses* t, const char* what, short other, const char* did,
                                     bool in_block, const void* instruction) {
    long long byte = t - r->accesses;
    if (!in_block)
        fail(instruction, "%s byte %lld of %s, which another block %s in the same launch", what, byte, name_of(r), did);
    if (other >= SEVERAL)
        fail(instruction, "%s byte %lld of %s, which other threads %s with no barrier since", what, byte, name_of(r),
             did);
    fail(instruction, "%s byte %lld of %s, which thread %d of the block %s with no barrier since", what, byte,
         name_of(r), other, did);
}

// Return whether an access by `warp`, after `operation` of its operations and `then` barriers, is ordered before now.
UNCHECKED static bool happened_before(unsigned then, int warp, unsigned operation) {
    if (then == 0) return true;  // there was no access
    if (then < first_epoch) return false;
    return then < epoch || (warp == current->warp && operation < operations[warp]);
}

UNCHECKED static void record(Region* r, const char* p, size_t size, bool store, const void* instruction) {
    short me = current->linear, my_warp = SEVERAL + current->warp;
    unsigned operation = operations[current->warp];
    const char* what = store ? "writes" : "reads";
    for (Accesses* t = r->accesses + (p - r->start); size > 0; t++, size--) {
        bool wrote = t->write_epoch >= first_epoch && t->writer == me;
        if (!wrote && !happened_before(t->write_epoch, t->writer / WARP, t->write_operation))
            fail_unordered(r, t, what, t->writer, "wrote", t->write_epoch >= first_epoch, instruction);
        bool read = t->read_epoch >= first_epoch && t->reader == me;
        int readers_warp = t->reader >= SEVERAL_WARPS ? -1 : t->reader >= SEVERAL ? t->reader - SEVERAL : t->reader / WARP;
        if (store) {
            if (!read && !happened_before(t->read_epoch, readers_warp, t->read_operation))
                fail_unordered(r, t, what, t->reader, "read", t->read_epoch >= first_epoch, instruction);
            t->writer = me, t->write_epoch = epoch, t->write_operation = operation;
        } else {
            bool first = t->read_epoch < epoch || read;
            t->reader = first ? me : readers_warp == current->warp ? my_warp : SEVERAL_WARPS;
            t->read_epoch = epoch, t->read_operation = operation;
        }
    }
}

UNCHECKED static void check_access(const void* address, size_t size, bool store, const void* instruction,
                                   bool atomic = false) {
    const char* p = (const char*)address;
    if (!current || (p >= launch->stacks && p < launch->stacks + launch->stack_bytes * MAX_THREADS)) return;
    Region* r = region_of(p, size);
    if (r && !atomic) record(r, p, size, store, instruction);
    if (!r && !(p >= __ehdr_start && p + size <= _end)) fail_outside(p, size, store ? "writes" : "reads", instruction);
}

// Barriers and warp operations

UNCHECKED static void block_barrier(const char* file, int line) {
    current->state = AT_BLOCK_BARRIER, current->file = file, current->line = line;
    yield_thread();
}

UNCHECKED static int block_or(int bit, const char* file, int line) {
    int half = epoch % 2;  // a fast thread may vote again before a slow one has read the result
    votes[half] = (votes_epoch[half] == epoch ? votes[half] : 0) | bit, votes_epoch[half] = epoch;
    block_barrier(file, line);
    return votes[half];
}

UNCHECKED static void warp_barrier(unsigned mask, const char* file, int line) {
    Thread *me = current, *warp = threads + me->warp * WARP;
    unsigned exist = n_threads - me->warp * WARP >= WARP ? ~0u : (1u << (n_threads - me->warp * WARP)) - 1;
    unsigned &waiting = lanes_waiting[me->warp], returned = lanes_returned[me->warp], here = mask & waiting;
    if (!(mask >> me->lane & 1))
        fail(0, "calls a warp operation (%s:%d) whose mask %08x leaves it out", file, line, mask);
    if (mask & ~exist)
        fail(0, "calls a warp operation (%s:%d) with mask %08x; lanes %08x exist", file, line, mask, exist);
    if (mask & returned)
        fail(0, "calls a warp operation (%s:%d) with mask %08x; lanes %08x have returned", file, line, mask, mask & returned);
    if (here) {  // the lanes that arrived earlier agree with each other
        Thread* other = warp + __builtin_ctz(here);
        if (other->mask != mask || other->line != line || other->file != file)
            fail(0, "calls a warp operation (%s:%d, mask %08x) while lane %d is at another one (%s:%d, mask %08x)", file,
                 line, mask, other->lane, other->file, other->line, other->mask);
    }
    waiting |= 1u << me->lane;
    me->state = AT_WARP_OPERATION, me->file = file, me->line = line, me->mask = mask;
    if ((waiting & mask) != mask) return yield_thread();
    waiting &= ~mask;
    for (int lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1)) continue;
        if (warp[lane].mask != mask)
            fail(0, "calls a warp operation (%s:%d, mask %08x) that lane %d, waiting for %08x, does not take part in", file,
                 line, mask, lane, warp[lane].mask);
        warp[lane].state = READY;
    }
    operations[me->warp]++;
}

// Show a value to the lanes of the mask and return the warp's table with their values, valid until the next operation.
template <class V> UNCHECKED static LaneValue* exchange(unsigned mask, const V& value, const char* file, int line) {
    static_assert(sizeof(V) <= sizeof(LaneValue), "a lane's value fits its slot in the table");
    Thread* me = current;
    LaneValue* values = lane_values[me->warp][me->parity ^= 1];
    memcpy(values[me->lane].bytes, &value, sizeof(V));
    warp_barrier(mask, file, line);
    return values;
}

template <class V> UNCHECKED static V value_of(const LaneValue* values, int lane) {
    V value;
    memcpy(&value, values[lane].bytes, sizeof(V));
    return value;
}

// The scheduler

UNCHECKED static void fiber() {
    for (;;) {
        kernel(launch->args);
        current->state = RETURNED;
        lanes_returned[current->warp] |= 1u << current->lane;
        yield_thread();
    }
}

UNCHECKED static void resume(Thread* thread) {
    current = thread;
    if (!_setjmp(scheduler)) {
        if (thread->started) _longjmp(thread->context, 1);
        thread->started = true;
        setcontext(&thread->start);
    }
    current = 0;
}

UNCHECKED static unsigned random_below(unsigned n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((random_state >> 33) % n);
}

UNCHECKED static void make_order(int* order, int n) {
    for (int i = 0; i < n; i++) order[i] = launch->order == REVERSE ? n - 1 - i : i;
    if (launch->order != RANDOM) return;
    for (int i = n - 1; i > 0; i--) {
        int j = random_below(i + 1), swapped = order[i];
        order[i] = order[j], order[j] = swapped;
    }
}

// Run every ready thread of a warp once; return false if none was ready.
UNCHECKED static bool run_warp(int warp) {
    int order[WARP], lanes = n_threads - warp * WARP < WARP ? n_threads - warp * WARP : WARP;
    bool ran = false;
    make_order(order, lanes);
    for (int i = 0; i < lanes && !failed; i++) {
        Thread* thread = threads + warp * WARP + order[i];
        if (thread->state != READY) continue;
        resume(thread);
        ran = true;
    }
    return ran;
}

UNCHECKED static void describe_deadlock() {
    Thread *waiting = 0, *other = 0;
    int returned = 0;
    for (int i = 0; i < n_threads; i++) {
        Thread* t = threads + i;
        if (t->state == RETURNED) returned++;
        else if (!waiting) waiting = t;
        else if (!other && (t->state != waiting->state || t->line != waiting->line || t->file != waiting->file)) other = t;
    }
    const char* name[] = {"", "__syncthreads", "a warp operation"};
    char rest[256] = "";
    if (other)
        snprintf(rest, sizeof rest, ", thread (%u, %u, %u) at %s (%s:%d)", other->index.x, other->index.y, other->index.z,
                 name[other->state], other->file, other->line);
    fail(0, "block (%u, %u, %u): threads wait for each other: thread (%u, %u, %u) at %s (%s:%d)%s, %d of %d have returned",
         the_block.x, the_block.y, the_block.z, waiting->index.x, waiting->index.y, waiting->index.z,
         name[waiting->state], waiting->file, waiting->line, rest, returned, n_threads);
}

UNCHECKED static void run_block() {
    int order[MAX_THREADS / WARP];
    for (int i = 0; i < n_threads; i++) threads[i].state = READY, threads[i].parity = 0, threads[i].copies = 0;
    for (Region* r = regions; r < regions + n_regions; r++) {
        if (r->argument >= 0) continue;
        memset(r->start, 0xFF, r->stop - r->start);  // NaN in every floating-point type
        memset(r->accesses, 0, (r->stop - r->start) * sizeof(Accesses));
    }
    memset(lanes_waiting, 0, sizeof lanes_waiting);
    memset(lanes_returned, 0, sizeof lanes_returned);
    first_epoch = ++epoch;
    while (!failed) {
        for (bool ran = true; ran && !failed;) {
            ran = false;
            make_order(order, n_warps);
            for (int i = 0; i < n_warps && !failed; i++)
                while (run_warp(order[i]) && !failed) {
                    ran = true;
                    if (launch->order == RANDOM) break;
                }
        }
        if (failed) return;
        int at_barrier = 0, returned = 0;
        for (int i = 0; i < n_threads; i++) {
            Thread* t = threads + i;
            returned += t->state == RETURNED;
            at_barrier += t->state == AT_BLOCK_BARRIER && t->line == threads->line && t->file == threads->file;
        }
        if (returned == n_threads) return;
        if (at_barrier != n_threads) return describe_deadlock();
        for (int i = 0; i < n_threads; i++) threads[i].state = READY;
        epoch++;
    }
}

UNCHECKED static void add_region(char* start, char* stop, int argument) {
    if (stop > start) regions[n_regions++] = {start, stop, argument, (Accesses*)calloc(stop - start, sizeof(Accesses))};
}

UNCHECKED static int run(Launch* l, void (*k)(void**)) {
    launch = l, kernel = k, failed = false, current = 0, random_state = l->seed;
    unsigned* b = l->block;
    the_block_size.x = b[0], the_block_size.y = b[1], the_block_size.z = b[2];
    the_grid.x = l->grid[0], the_grid.y = l->grid[1], the_grid.z = l->grid[2];
    n_threads = b[0] * b[1] * b[2], n_warps = (n_threads + WARP - 1) / WARP;
    n_regions = 0;
    add_region(__start_npx_shared, __stop_npx_shared, STATIC_SHARED);
    add_region(l->shared, l->shared + l->shared_bytes, DYNAMIC_SHARED);
    for (uint64_t i = 0; i < l->n_arrays; i++) add_region(l->arrays[i].start, l->arrays[i].stop, l->arrays[i].argument);
    epoch = votes_epoch[0] = votes_epoch[1] = 0;
    memset(operations, 0, sizeof operations);
    for (int i = 0; i < n_threads; i++) {
        Thread* t = threads + i;
        t->index.x = i % b[0], t->index.y = i / b[0] % b[1], t->index.z = i / (b[0] * b[1]);
        t->linear = i, t->warp = i / WARP, t->lane = i % WARP, t->started = false;
        getcontext(&t->start);
        t->start.uc_stack.ss_sp = l->stacks + i * l->stack_bytes;
        t->start.uc_stack.ss_size = l->stack_bytes;
        makecontext(&t->start, fiber, 0);
    }
    unsigned blocks = l->grid[0] * l->grid[1] * l->grid[2];
    for (unsigned i = 0; i < blocks && !failed; i++) {
        unsigned j = l->order == REVERSE ? blocks - 1 - i : i;
        the_block.x = j % l->grid[0], the_block.y = j / l->grid[0] % l->grid[1], the_block.z = j / (l->grid[0] * l->grid[1]);
        run_block();
    }
    for (int i = 0; i < n_regions; i++) free(regions[i].accesses);
    launch = 0, current = 0;
    return failed;
}

}  // namespace emulator
