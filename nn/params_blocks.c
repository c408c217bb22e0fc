#include "nn/params_blocks.h"

#include <stdio.h>
#include <string.h>

#include "core/memory.h"

/* ---- writing ---------------------------------------------------------------------------- */

/* Everything that a write holds on the host. */
typedef struct Staging {
    float *values[FLAT_BLOCKS];
    SafeItem *items;
    char *names; /* all prefixed names, one after the other */
} Staging;

static size_t names_bytes(const Params *p, const FlatBlock *blocks, int count) {
    size_t bytes = 0;
    for (int b = 0; b < count; b++)
        for (int64_t i = 0; i < p->count; i++)
            bytes += strlen(blocks[b].prefix) + strlen(p->items[i]->name) + 1;
    return bytes;
}

static Status stage_alloc(Staging *s, const Params *p, const FlatBlock *blocks, int count) {
    void *memory;
    TRY(mem_alloc(&memory, count * p->count, sizeof(SafeItem), "tensor list"));
    s->items = memory;
    TRY(mem_alloc(&memory, (int64_t)names_bytes(p, blocks, count), 1, "tensor names"));
    s->names = memory;
    for (int b = 0; b < count; b++) {
        TRY(mem_alloc(&memory, p->flat, sizeof(float), "tensors to write"));
        s->values[b] = memory;
    }
    return STATUS_OK;
}

static Status stage(Staging *s, Params *p, const FlatBlock *blocks, int count) {
    TRY(stage_alloc(s, p, blocks, count));
    char *name = s->names;
    SafeItem *item = s->items;
    for (int b = 0; b < count; b++) {
        TRY(device_pull(p->device, s->values[b], blocks[b].block));
        for (int64_t i = 0; i < p->count; i++, item++) {
            item->name = name;
            name += sprintf(name, "%s%s", blocks[b].prefix, p->items[i]->name) + 1;
            item->t = p->items[i]->master;
            item->t.data = s->values[b] + p->items[i]->offset;
        }
    }
    return STATUS_OK;
}

Status params_write_blocks(Params *p, const char *path, const FlatBlock *blocks, int count,
                           const SafeMeta *meta, int64_t meta_count) {
    Staging s = {0};
    if (count > FLAT_BLOCKS) return status_set(STATUS_INTERNAL, "too many blocks for one file");
    Status status = stage(&s, p, blocks, count);
    if (status == STATUS_OK)
        status = safetensors_write(path, s.items, count * p->count, meta, meta_count);
    for (int b = 0; b < FLAT_BLOCKS; b++) mem_free(s.values[b]);
    mem_free(s.names);
    mem_free(s.items);
    return status;
}

/* ---- reading ---------------------------------------------------------------------------- */

/* The entry <prefix><name>, or STATUS_DATA. */
static Status find_entry(const SafeFile *f, const char *prefix, const Param *item,
                         const SafeEntry **out) {
    char *name;
    void *memory;
    size_t size = strlen(prefix) + strlen(item->name) + 1;
    TRY(mem_alloc(&memory, (int64_t)size, 1, "tensor name"));
    name = memory;
    snprintf(name, size, "%s%s", prefix, item->name);
    const SafeEntry *e = safetensors_find(f, name);
    Status s = STATUS_OK;
    bool fits = e && e->dtype == DTYPE_F32 && e->rank == item->master.rank;
    for (int i = 0; fits && i < e->rank; i++) fits = e->shape[i] == item->master.shape[i];
    if (!e)
        s = status_set(STATUS_DATA, "%s is missing", name);
    else if (!fits)
        s = status_set(STATUS_DATA, "%s does not have the model's shape in F32", name);
    mem_free(name);
    *out = e;
    return s;
}

Status params_check_blocks(Params *p, const SafeFile *f, const FlatBlock *blocks, int count) {
    if (safetensors_count(f) != count * p->count)
        return status_set(STATUS_DATA, "%lld tensors where the model has %lld",
                          (long long)safetensors_count(f), (long long)(count * p->count));
    for (int b = 0; b < count; b++)
        for (int64_t i = 0; i < p->count; i++) {
            const SafeEntry *e;
            TRY(find_entry(f, blocks[b].prefix, p->items[i], &e));
        }
    return STATUS_OK;
}

static Status read_entry(Params *p, const SafeFile *f, const FlatBlock *block, const Param *item,
                         float *host) {
    const SafeEntry *e;
    TRY(find_entry(f, block->prefix, item, &e));
    Tensor dst = item->master, device = item->master;
    dst.data = host;
    device.data = (float *)block->block.data + item->offset;
    TRY(safetensors_read(e, dst));
    return device_push(p->device, device, host);
}

Status params_read_blocks(Params *p, const SafeFile *f, const FlatBlock *blocks, int count) {
    void *host;
    TRY(mem_alloc(&host, params_largest(p), sizeof(float), "tensor to read"));
    Status s = STATUS_OK;
    for (int b = 0; b < count && s == STATUS_OK; b++)
        for (int64_t i = 0; i < p->count && s == STATUS_OK; i++)
            s = read_entry(p, f, &blocks[b], p->items[i], host);
    mem_free(host);
    return s;
}
