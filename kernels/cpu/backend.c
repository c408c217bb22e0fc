/* Memory of the CPU device: host memory at 256-byte boundaries, large blocks in huge pages. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/memory.h"
#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/kernels.h"

#define CPU_ALIGN ((size_t)256)
#define HUGE_PAGE ((size_t)2 << 20)

/* The pointer that mem_malloc returned lies just in front of the aligned region. */
static Status cpu_alloc(Device *d, size_t bytes, void **out) {
    (void)d;
    const size_t align = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : CPU_ALIGN;
    if (bytes > SIZE_MAX - align - sizeof(void *))
        return status_set(STATUS_MEMORY, "%zu bytes are more than there can be", bytes);
    void *raw = mem_malloc(bytes + align + sizeof(void *));
    if (!raw) return status_set(STATUS_MEMORY, "no host memory for %zu bytes", bytes);
    const uintptr_t start = (uintptr_t)raw + sizeof(void *);
    const size_t shift = (align - start % align) % align;
    char *aligned = (char *)raw + sizeof(void *) + shift;
    memcpy(aligned - sizeof(void *), &raw, sizeof raw);
    /* Fewer page faults and TLB misses; where the kernel declines, nothing is lost. */
    if (align == HUGE_PAGE) (void)madvise(aligned, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    *out = aligned;
    return STATUS_OK;
}

static void cpu_release(Device *d, void *memory) {
    (void)d;
    void *raw;
    memcpy(&raw, (char *)memory - sizeof(void *), sizeof raw);
    mem_free(raw);
}

static Status cpu_copy(Device *d, void *dst, const void *src, size_t bytes) {
    (void)d;
    memcpy(dst, src, bytes);
    return STATUS_OK;
}

static Status cpu_sync(Device *d) {
    (void)d;
    return STATUS_OK;
}

static Status cpu_available(Device *d, size_t *available, size_t *total) {
    (void)d;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *total = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    *available = (size_t)sysconf(_SC_AVPHYS_PAGES) * page;
    FILE *file = fopen("/proc/meminfo", "r"); /* counts reclaimable caches as free */
    if (!file) return STATUS_OK;
    char line[128];
    unsigned long long kib;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) *available = (size_t)kib * 1024;
    }
    fclose(file);
    return STATUS_OK;
}

static void cpu_close(Device *d) {
    gemm_close(d);
}

static const DeviceMemory cpu_memory = {
    .alloc = cpu_alloc,
    .release = cpu_release,
    .push = cpu_copy,
    .pull = cpu_copy,
    .sync = cpu_sync,
    .available = cpu_available,
    .close = cpu_close,
};

/* "model name : AMD EPYC" of the first processor. */
static void cpu_name(char *out, size_t size) {
    snprintf(out, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *value = strchr(line, ':');
        if (!value) continue;
        value += strspn(value, ": \t");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    fclose(file);
}

Status cpu_device_open(Device **out) {
    Device *d;
    TRY(mem_alloc((void **)&d, 1, sizeof *d, "device"));
    d->kind = DEVICE_CPU;
    d->k = &kernels_cpu;
    d->memory = &cpu_memory;
    cpu_name(d->name, sizeof d->name);
    const Status status = gemm_open(d);
    if (status != STATUS_OK) {
        mem_free(d);
        return status;
    }
    *out = d;
    return STATUS_OK;
}
