#include "tools/weights_out.h"

#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"

Status weights_out_begin(WeightsOut *w, const SafeFile *like, int64_t more) {
    void *block;
    *w = (WeightsOut){0};
    TRY(mem_alloc(&block, safetensors_count(like) + 1, sizeof(SafeItem), "tensors to write"));
    w->items = block;
    TRY(mem_alloc(&block, safetensors_meta_count(like) + more + 1, sizeof(SafeMeta),
                  "metadata to write"));
    w->meta = block;
    return STATUS_OK;
}

bool weights_out_skips(const SafeEntry *e) {
    return e->dtype == DTYPE_I64 && strstr(e->name, "num_batches_tracked") != NULL;
}

Status weights_out_take(WeightsOut *w, const SafeEntry *e, Tensor *out) {
    void *block;
    if (e->rank < 1 || e->rank > 4)
        return status_set(STATUS_DATA, "tensor '%.200s' has %d axes, expected 1 to 4", e->name,
                          e->rank);
    *out = tensor_of(NULL, DTYPE_F32, e->rank, e->shape);
    TRY(mem_alloc(&block, tensor_count(*out), sizeof(float), "a tensor to write"));
    *out = tensor_of(block, DTYPE_F32, e->rank, e->shape);
    w->items[w->count++] = (SafeItem){e->name, *out};
    return STATUS_OK;
}

Status weights_out_done(WeightsOut *w, int dtype) {
    SafeItem *item = &w->items[w->count - 1];
    const bool table = strstr(item->name, "rope.rotations") != NULL; /* half the digits spoil it */
    if (dtype == WEIGHTS_BF16 && item->t.rank > 1 && !table) {
        void *narrow;
        const int64_t count = tensor_count(item->t);
        float *wide = item->t.data;
        TRY(mem_alloc(&narrow, count, sizeof(uint16_t), "a tensor to write"));
        for (int64_t i = 0; i < count; i++) ((uint16_t *)narrow)[i] = bf16_from_f32(wide[i]);
        item->t = tensor_of(narrow, DTYPE_BF16, item->t.rank, item->t.shape);
        mem_free(wide);
    }
    w->bytes += (int64_t)tensor_bytes(item->t);
    return STATUS_OK;
}

void weights_out_meta(WeightsOut *w, const char *key, const char *value) {
    w->meta[w->meta_count++] = (SafeMeta){key, value};
}

static Status report(const WeightsOut *w, const char *path) {
    if (!common.json) {
        out_printf("%lld tensors, %lld bytes, in ", (long long)w->count, (long long)w->bytes);
        out_path(path);
        out_text("\n");
        return STATUS_OK;
    }
    JsonWriter j;
    json_writer_init(&j);
    json_begin_object(&j);
    json_pair_string(&j, "file", path);
    json_pair_int(&j, "tensors", w->count);
    json_pair_int(&j, "tensor_bytes", w->bytes);
    json_end_object(&j);
    return out_json(&j, STATUS_OK);
}

Status weights_out_write(const WeightsOut *w, const char *path) {
    TRY(safetensors_write(path, w->items, w->count, w->meta, w->meta_count));
    return report(w, path);
}

void weights_out_free(WeightsOut *w) {
    for (int64_t i = 0; i < w->count; i++) mem_free(w->items[i].t.data);
    mem_free(w->items);
    mem_free(w->meta);
    *w = (WeightsOut){0};
}

Status weights_out_check(const char *path, bool overwrite) {
    if (overwrite || !file_exists(path)) return STATUS_OK;
    return status_set(STATUS_USAGE, "%s exists; --overwrite writes over it", path);
}
