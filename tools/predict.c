/* Pixels to scores, and the exact sums of a scoring pass. */
#include "tools/predict.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"

Status predictor_open(Predictor *p, const Model *m, int64_t batch) {
    *p = (Predictor){.model = m, .batch = batch};
    const int64_t size = m->preprocess.image_size, shape[4] = {batch, size, size, 3};
    TRY(tape_new(m->device, &p->tape));
    tape_set_act(p->tape, m->act);
    Status s = arena_tensor(&m->device->weights, DTYPE_U8, 4, shape, &p->pixels);
    if (s != STATUS_OK) predictor_close(p);
    return s;
}

void predictor_close(Predictor *p) {
    if (p->tape) tape_free(p->tape);
    mem_free(p->mirrored);
    mem_free(p->second);
    *p = (Predictor){0};
}

Status predictor_mirror(Predictor *p) {
    const int64_t size = p->model->preprocess.image_size;
    TRY(mem_alloc((void **)&p->mirrored, p->batch * size * size, 3, "mirrored pictures"));
    return mem_alloc((void **)&p->second, p->batch * p->model->config.classes, sizeof(float),
                     "scores of mirrored pictures");
}

static Status forward(Predictor *p, const uint8_t *pixels, int64_t count, float *logits) {
    const Model *m = p->model;
    float mean[3], std[3];
    if (count < 1 || count > p->batch)
        return status_set(STATUS_INTERNAL, "predict: %lld images, room for %lld", (long long)count,
                          (long long)p->batch);
    for (int i = 0; i < 3; i++) {
        mean[i] = (float)m->preprocess.mean[i];
        std[i] = (float)m->preprocess.std[i];
    }
    const int64_t size = m->preprocess.image_size;
    Tensor input = tensor_4d(p->pixels.data, DTYPE_U8, count, size, size, 3);
    TRY(device_push(m->device, input, pixels));
    tape_reset(p->tape, false);
    const int64_t patch = m->config.patch, side = size / patch;
    Var *patches = op_image_normalise(p->tape, input, mean, std, patch);
    Var *out = vittt_forward_patches(m->vittt, p->tape, patches, side, side, false);
    TRY(tape_status(p->tape));
    return device_pull(m->device, logits, out->value);
}

static void mirror_rows(uint8_t *dst, const uint8_t *src, int64_t rows, int64_t size) {
    for (int64_t y = 0; y < rows; y++, src += size * 3) {
        for (int64_t x = 0; x < size; x++, dst += 3) memcpy(dst, src + (size - 1 - x) * 3, 3);
    }
}

static Status add_mirrored(Predictor *p, const uint8_t *pixels, int64_t count, float *logits) {
    const int64_t size = p->model->preprocess.image_size;
    mirror_rows(p->mirrored, pixels, count * size, size);
    TRY(forward(p, p->mirrored, count, p->second));
    for (int64_t i = 0; i < count * p->model->config.classes; i++)
        logits[i] = 0.5f * (logits[i] + p->second[i]);
    return STATUS_OK;
}

Status predict(Predictor *p, const uint8_t *pixels, int64_t count, float *logits) {
    Status s = forward(p, pixels, count, logits);
    if (s == STATUS_OK && p->second) s = add_mirrored(p, pixels, count, logits);
    if (s != STATUS_MEMORY) return s;
    return status_context(s, "a batch of %lld images does not fit, try a smaller --batch-size",
                          (long long)count);
}

void softmax_row(const float *logits, int64_t classes, float *probs) {
    float largest = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < classes; i++) largest = fmaxf(largest, logits[i]);
    for (int64_t i = 0; i < classes; i++) sum += exp((double)logits[i] - largest);
    for (int64_t i = 0; i < classes; i++)
        probs[i] = (float)(exp((double)logits[i] - largest) / sum);
}

double loss_row(const float *logits, int64_t classes, int64_t label) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < classes; i++) largest = fmax(largest, logits[i]);
    for (int64_t i = 0; i < classes; i++) sum += exp((double)logits[i] - largest);
    return log(sum) + largest - logits[label];
}

/* The order of top_k: a before b? */
static bool before(const float *scores, int64_t a, int64_t b) {
    float x = scores[a], y = scores[b];
    if (isnan(x) || isnan(y)) return isnan(x) == isnan(y) ? a < b : isnan(y);
    return x == y ? a < b : x > y;
}

void top_k(const float *scores, int64_t classes, int64_t k, int64_t *indices) {
    int64_t found = 0;
    for (int64_t i = 0; i < classes; i++) {
        if (found == k && !before(scores, i, indices[k - 1])) continue;
        int64_t at = found < k ? found++ : k - 1;
        for (; at > 0 && before(scores, i, indices[at - 1]); at--) indices[at] = indices[at - 1];
        indices[at] = i;
    }
}

int64_t label_rank(const float *scores, int64_t classes, int64_t label) {
    int64_t rank = 0;
    for (int64_t i = 0; i < classes; i++) rank += i != label && before(scores, i, label);
    return rank;
}

void score_add(Score *s, const float *logits, int64_t count, int64_t classes, const int64_t *labels,
               const uint8_t *valid) {
    for (int64_t i = 0; i < count; i++) {
        const float *row = logits + i * classes;
        if (valid && !valid[i]) {
            s->left_out++;
            continue;
        }
        int64_t rank = label_rank(row, classes, labels[i]);
        s->scored++;
        s->top1 += rank == 0;
        s->top5 += rank < 5;
        s->loss_sum += loss_row(row, classes, labels[i]);
    }
}
