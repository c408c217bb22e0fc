/* The sizes of a model from the shapes of its tensors (lact_nvs.md 6). */
#include <math.h>
#include <stdio.h>

#include "nvs/lact_nvs.h"

static Status shape_of(const SafeFile *f, const char *name, int rank, const SafeEntry **out) {
    *out = safetensors_find(f, name);
    if (!*out)
        return status_set(STATUS_DATA, "%s: no LaCT-NVS weights (tensor '%s' is missing)",
                          safetensors_path(f), name);
    if ((*out)->rank != rank)
        return status_set(STATUS_DATA, "%s: tensor '%s' has rank %d, expected %d",
                          safetensors_path(f), name, (*out)->rank, rank);
    for (int i = 0; i < rank; i++) {
        if ((*out)->shape[i] < 1)
            return status_set(STATUS_DATA, "%s: tensor '%s' is empty", safetensors_path(f), name);
    }
    return STATUS_OK;
}

static int64_t count_layers(const SafeFile *f) {
    int64_t n = 0;
    for (char name[64];; n++) {
        snprintf(name, sizeof name, "blocks.%lld.module_list.1.f.w0", (long long)n);
        if (!safetensors_find(f, name)) return n;
    }
}

Status lact_nvs_config_from_weights(LactNvsConfig *c, const SafeFile *f) {
    const SafeEntry *output, *w0, *q_norm, *packed;
    TRY(shape_of(f, "image_token_decoder.1.weight", 2, &output));
    TRY(shape_of(f, "blocks.0.module_list.1.f.w0", 3, &w0));
    TRY(shape_of(f, "blocks.0.module_list.0.f.q_norm.weight", 1, &q_norm));
    TRY(shape_of(f, "blocks.0.module_list.1.f.to_qkv.weight", 2, &packed));
    const int64_t rows = output->shape[0], patch = llround(sqrt((double)rows / 3));
    if (3 * patch * patch != rows)
        return status_set(STATUS_DATA,
                          "%s: 'image_token_decoder.1.weight' has %lld rows, which is not 3 p^2",
                          safetensors_path(f), (long long)rows);
    if (w0->shape[2] % w0->shape[1] != 0)
        return status_set(
            STATUS_DATA,
            "%s: 'blocks.0.module_list.1.f.w0' is [%lld, %lld, %lld]: hidden channels "
            "are not a multiple of those of a head",
            safetensors_path(f), (long long)w0->shape[0], (long long)w0->shape[1],
            (long long)w0->shape[2]);
    snprintf(c->preset, sizeof c->preset, "custom");
    c->patch = patch;
    c->width = output->shape[1];
    c->layers = count_layers(f);
    c->head_width = q_norm->shape[0];
    c->fast_heads = w0->shape[0];
    c->inter_multi = w0->shape[2] / w0->shape[1];
    if (packed->shape[0] == 2 * c->width) snprintf(c->variant, sizeof c->variant, "query_is_key");
    return STATUS_OK;
}
