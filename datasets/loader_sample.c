#include "core/memory.h"
#include "datasets/loader_internal.h"

void sample_scratch_free(SampleScratch *s) {
    image_scratch_free(&s->image);
    resize_scratch_free(&s->resize);
}

bool sample_is_corrupt(Status s) {
    return s == STATUS_DATA || s == STATUS_IO;
}

typedef struct SampleBytes {
    const void *data;
    size_t size;
    const char *name;
} SampleBytes;

static Status transform(const Image *image, const LoaderOptions *o, Rng *rng,
                        SampleScratch *scratch, uint8_t *dst) {
    if (o->augment == NULL) return preprocess_apply(o->preprocess, image, dst, &scratch->resize);
    return augment_apply(o->augment, o->preprocess, image, rng, dst, &scratch->resize);
}

static Status load_bytes(const SampleBytes *b, const LoaderOptions *o, Rng *rng,
                         SampleScratch *scratch, uint8_t *dst) {
    Image image;
    if (o->image.apply_orientation) { /* may need a second buffer: the plain way */
        TRY(image_decode(b->data, b->size, b->name, &o->image, &image, NULL));
        Status s = transform(&image, o, rng, scratch, dst);
        image_free(&image);
        return s;
    }
    TRY(image_decode_scratch(b->data, b->size, b->name, &o->image, &scratch->image, &image));
    return transform(&image, o, rng, scratch, dst);
}

Status sample_load(const Dataset *d, const LoaderOptions *o, int64_t epoch, int64_t index,
                   SampleScratch *scratch, uint8_t *dst) {
    SampleBytes b = {.name = dataset_name(d, index)};
    bool owned;
    Rng rng = rng_stream(o->seed, RNG_AUGMENT, (uint64_t)epoch, (uint64_t)index);
    TRY(dataset_bytes(d, index, &b.data, &b.size, &owned));
    Status s = load_bytes(&b, o, &rng, scratch, dst);
    if (owned) mem_free((void *)(uintptr_t)b.data);
    return s;
}
