/* The functions that a kernel's machine code calls: they allocate tiles, and copy between tiles and tensors. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Holds the tiles of one program. The address space is reserved; only pages that are used take memory. */
static const size_t capacity = (size_t)1 << 34;
static char *arena;
static size_t used;

void begin_program(void) {
    used = 0;
}

/* Returns a tile that is filled with NaN, because an NPU's buffer is not initialized either. */
void *_mlir_memref_to_llvm_alloc(size_t bytes) {
    if (arena == NULL) {
        arena = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    size_t rounded = (bytes + 63) & ~(size_t)63;
    if (arena == MAP_FAILED || used + rounded > capacity) {
        fprintf(stderr, "offboard: no memory for a tile of %zu bytes after %zu\n", bytes, used);
        abort();
    }
    char *tile = arena + used;
    used += rounded;
    return memset(tile, 0xff, rounded);
}

/* MLIR's calling convention for memref.copy: unranked descriptors of (allocated, aligned, offset, sizes, strides). */
typedef struct {
    int64_t rank;
    void *descriptor;
} Unranked;

typedef struct {
    char *allocated, *aligned;
    int64_t offset, sizes_and_strides[];
} Ranked;

static void copy(size_t size, int64_t rank, const int64_t *sizes, char *from, const int64_t *from_strides, char *to,
                 const int64_t *to_strides) {
    if (rank == 0) {
        memcpy(to, from, size);
        return;
    }
    for (int64_t i = 0; i < sizes[0]; i++) {
        copy(size, rank - 1, sizes + 1, from + i * from_strides[0] * (int64_t)size, from_strides + 1,
             to + i * to_strides[0] * (int64_t)size, to_strides + 1);
    }
}

void memrefCopy(int64_t size, const Unranked *source, const Unranked *target) {
    const Ranked *from = source->descriptor, *to = target->descriptor;
    const int64_t *sizes = from->sizes_and_strides;
    copy((size_t)size, source->rank, sizes, from->aligned + from->offset * size, sizes + source->rank,
         to->aligned + to->offset * size, to->sizes_and_strides + source->rank);
}
