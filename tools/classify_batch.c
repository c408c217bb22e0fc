/* From names to results, a batch at a time. */
#include "tools/classify.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/parallel.h"

Status classifier_reserve(Classifier *c) {
    int64_t batch = c->options->batch, n = c->model.config.classes;
    int64_t side = c->model.preprocess.image_size;
    TRY(mem_alloc((void **)&c->pictures, batch, sizeof(Picture), "batch of pictures"));
    TRY(mem_alloc((void **)&c->pixels, batch, (size_t)(side * side * 3), "pixels of a batch"));
    TRY(mem_alloc((void **)&c->logits, batch * n, sizeof(float), "logits"));
    TRY(mem_alloc((void **)&c->scores, 2 * n, sizeof(float), "scores"));
    return mem_alloc((void **)&c->classes, n, sizeof(int64_t), "class order");
}

static void forget_batch(Classifier *c) {
    for (int64_t i = 0; i < c->count; i++) {
        mem_free(c->pictures[i].path);
        mem_free(c->pictures[i].error);
    }
    c->count = 0;
}

void classifier_free(Classifier *c) {
    forget_batch(c);
    mem_free(c->pictures);
    mem_free(c->pixels);
    mem_free(c->logits);
    mem_free(c->scores);
    mem_free(c->classes);
}

static int64_t picture_bytes(const Classifier *c) {
    int64_t side = c->model.preprocess.image_size;
    return side * side * 3;
}

static Status read_stdin(char **data, size_t *size) {
    size_t capacity = 0, limit = IMAGE_MAX_FILE_BYTES;
    void *block = NULL;
    *size = 0;
    for (;;) {
        if (*size == capacity) {
            if (capacity >= limit) {
                mem_free(block);
                return status_set(STATUS_DATA, "standard input: more than %zu bytes", limit);
            }
            capacity = capacity ? 2 * capacity : 1 << 16;
            Status s = mem_grow(&block, (int64_t)capacity, 1, "standard input");
            if (s != STATUS_OK) {
                mem_free(block);
                return s;
            }
        }
        size_t got = fread((char *)block + *size, 1, capacity - *size, stdin);
        *size += got;
        if (got == 0) break;
    }
    *data = block;
    return STATUS_OK;
}

static Status decode_stdin(const ImageOptions *o, Image *image, ImageInfo *info) {
    char *data = NULL;
    size_t size;
    TRY(read_stdin(&data, &size));
    Status s = image_decode(data, size, "standard input", o, image, info);
    mem_free(data);
    return s;
}

/* Decodes and preprocesses one picture into its place. What is wrong with it is a result. */
static Status prepare(void *user, int64_t i) {
    Classifier *c = user;
    Picture *p = &c->pictures[i];
    Image image = {0};
    ImageInfo info = {0};
    ResizeScratch scratch = {0};
    if (p->error) return STATUS_OK;
    Status s = p->is_stdin ? decode_stdin(&c->decode, &image, &info)
                           : image_read(p->path, &c->decode, &image, &info);
    if (s == STATUS_OK)
        s = preprocess_apply(&c->model.preprocess, &image, c->pixels + i * picture_bytes(c),
                             &scratch);
    p->width = image.width;
    p->height = image.height;
    p->orientation = info.orientation;
    resize_scratch_free(&scratch);
    image_free(&image);
    if (s == STATUS_OK || s == STATUS_MEMORY) return s;
    return mem_string(&p->error, status_message());
}

/* Fills c->pictures with the next names; STATUS_END when there is none. */
static Status collect(Classifier *c) {
    Input input;
    Status s = STATUS_OK;
    while (c->count < c->options->batch && (s = inputs_next(c->inputs, &input)) == STATUS_OK) {
        Picture *p = &c->pictures[c->count++];
        *p = (Picture){.is_stdin = input.is_stdin};
        TRY(mem_string(&p->path, input.path));
        if (input.error) TRY(mem_string(&p->error, input.error));
    }
    if (s != STATUS_END) return s;
    return c->count > 0 ? STATUS_OK : STATUS_END;
}

/* Logits of the pictures that decoded, packed in order. */
static Status forward(Classifier *c) {
    int64_t good = 0, bytes = picture_bytes(c);
    for (int64_t i = 0; i < c->count; i++) {
        if (c->pictures[i].error) continue;
        if (good < i) memmove(c->pixels + good * bytes, c->pixels + i * bytes, (size_t)bytes);
        good++;
    }
    return good > 0 ? predict(&c->predictor, c->pixels, good, c->logits) : STATUS_OK;
}

static Status write_result(Classifier *c, const Picture *p, const float *logits) {
    ResultRow row = {p->path, p->error, p->width, p->height, p->orientation, NULL, NULL};
    int64_t n = c->model.config.classes;
    if (p->error) {
        complain("%s", p->error);
        c->failed++;
        TRY(results_row(c->writer, &row));
        if (c->options->on_corrupt == ON_CORRUPT_FAIL)
            return status_set(STATUS_DATA, "stopped at the first picture that cannot be read");
        return STATUS_OK;
    }
    if (!scores_are_numbers(logits, n)) {
        row.error = "the model's scores of it are not finite";
        char shown[600];
        complain("%s: %s", text_printable(p->path, shown, sizeof shown), row.error);
        c->not_finite++;
        return results_row(c->writer, &row);
    }
    float *all = c->scores, *best = c->scores + n;
    if (c->options->output_type == 0)
        softmax_row(logits, n, all);
    else
        memcpy(all, logits, (size_t)n * sizeof *all);
    top_k(logits, n, c->topk, c->classes);
    for (int64_t k = 0; k < c->topk; k++) best[k] = all[c->classes[k]];
    row.classes = c->classes;
    row.scores = best;
    return results_row(c->writer, &row);
}

static Status classify_batch(Classifier *c) {
    TRY(parallel_for(c->count, (int)c->options->workers, prepare, NULL, c));
    TRY(forward(c));
    const float *logits = c->logits;
    for (int64_t i = 0; i < c->count; i++) {
        TRY(write_result(c, &c->pictures[i], logits));
        if (!c->pictures[i].error) logits += c->model.config.classes;
    }
    c->done += c->count;
    return STATUS_OK;
}

Status classifier_next(Classifier *c) {
    forget_batch(c);
    TRY(collect(c));
    return classify_batch(c);
}
