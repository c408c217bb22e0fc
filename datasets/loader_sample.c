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

/* Turned images are rare: they take the plain way through a whole decode. */
static Status load_turned(const SampleBytes *b, const LoaderOptions *o, Rng *rng,
                          SampleScratch *scratch, uint8_t *dst) {
    Image image;
    TRY(image_decode(b->data, b->size, b->name, &o->image, &image, NULL));
    Status s = o->augment != NULL
                   ? augment_apply(o->augment, o->preprocess, &image, rng, dst, &scratch->resize)
                   : preprocess_apply(o->preprocess, &image, dst, &scratch->resize);
    image_free(&image);
    return s;
}

static Status load_bytes(const SampleBytes *b, const LoaderOptions *o, Rng *rng,
                         SampleScratch *scratch, uint8_t *dst) {
    ImageInfo info;
    Image image;
    bool need_info = o->augment != NULL || o->image.apply_orientation;
    if (need_info) TRY(image_probe(b->data, b->size, b->name, &info));
    if (o->image.apply_orientation && info.orientation != 1) {
        return load_turned(b, o, rng, scratch, dst);
    }
    if (o->augment == NULL) {
        TRY(image_decode_region(b->data, b->size, b->name, &o->image, NULL, &scratch->image,
                                &image));
        return preprocess_apply(o->preprocess, &image, dst, &scratch->resize);
    }
    ImageRegion region = augment_region(o->augment, info.width, info.height, rng);
    TRY(image_decode_region(b->data, b->size, b->name, &o->image, &region, &scratch->image,
                            &image));
    return augment_region_apply(o->augment, o->preprocess, &image, rng, dst, &scratch->resize);
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
