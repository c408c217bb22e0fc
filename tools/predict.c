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
    if (s == STATUS_OK && !m->training) s = vittt_fold(m->vittt, m->device, batch);
    if (s != STATUS_OK) predictor_close(p);
    return s;
}

void predictor_close(Predictor *p) {
    if (p->tape) tape_free(p->tape);
    mem_free(p->view);
    mem_free(p->view_scores);
    mem_free(p->sums);
    *p = (Predictor){0};
}

/* ---- test-time averaging ---- */

int64_t tta_views(Tta tta) {
    return tta == TTA_SHIFT ? 18 : tta == TTA_FLIP ? 2 : 1;
}

const char *tta_name(Tta tta) {
    return tta == TTA_SHIFT ? "shift" : tta == TTA_FLIP ? "flip" : "none";
}

Status predictor_average(Predictor *p, Tta tta) {
    const int64_t size = p->model->preprocess.image_size;
    if (tta == TTA_NONE || p->tta != TTA_NONE)
        return status_set(STATUS_INTERNAL, "test-time averaging is chosen once");
    TRY(mem_alloc((void **)&p->view, p->batch * size * size, 3, "a view of a batch"));
    const int64_t scores = p->batch * p->model->config.classes;
    TRY(mem_alloc((void **)&p->view_scores, scores, sizeof(float), "scores of a view"));
    TRY(mem_alloc((void **)&p->sums, scores, sizeof(double), "sums of scores"));
    p->tta = tta;
    return STATUS_OK;
}

static int64_t mirror_index(int64_t i, int64_t size) {
    if (size < 2) return 0;
    return i < 0 ? -i : i >= size ? 2 * (size - 1) - i : i;
}

void tta_view(uint8_t *view, const uint8_t *pixels, int64_t count, int64_t size, int64_t index) {
    /* the mirror image first, so that the views of TTA_FLIP are the first two of TTA_SHIFT */
    static const int8_t shifts[9][2] = {{0, 0},   {-1, 0}, {1, 0},  {0, -1}, {0, 1},
                                        {-1, -1}, {1, -1}, {-1, 1}, {1, 1}};
    const bool mirror = index % 2 == 1;
    const int64_t dx = shifts[index / 2][0], dy = shifts[index / 2][1];
    for (int64_t i = 0; i < count; i++, pixels += size * size * 3) {
        for (int64_t y = 0; y < size; y++) {
            const uint8_t *row = pixels + mirror_index(y + dy, size) * size * 3;
            for (int64_t x = 0; x < size; x++, view += 3) {
                const int64_t from = mirror_index(x + dx, size);
                memcpy(view, row + (mirror ? size - 1 - from : from) * 3, 3);
            }
        }
    }
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
    const int64_t patch = vittt_input_patch(&m->config), side = size / m->config.patch;
    Var *patches = op_image_normalise(p->tape, input, mean, std, patch);
    Var *out = vittt_forward_patches(m->vittt, p->tape, patches, side, side, false);
    TRY(tape_status(p->tape));
    return device_pull(m->device, logits, out->value);
}

static Status average_views(Predictor *p, const uint8_t *pixels, int64_t count, float *logits) {
    const int64_t views = tta_views(p->tta), size = p->model->preprocess.image_size;
    const int64_t scores = count * p->model->config.classes;
    for (int64_t i = 0; i < scores; i++) p->sums[i] = logits[i];
    for (int64_t v = 1; v < views; v++) {
        tta_view(p->view, pixels, count, size, v);
        TRY(forward(p, p->view, count, p->view_scores));
        for (int64_t i = 0; i < scores; i++) p->sums[i] += p->view_scores[i];
    }
    for (int64_t i = 0; i < scores; i++) logits[i] = (float)(p->sums[i] / (double)views);
    return STATUS_OK;
}

static void bar_classes(const Predictor *p, int64_t count, float *logits) {
    const int64_t classes = p->model->config.classes;
    for (int64_t i = 0; i < count * classes; i++)
        if (p->barred[i % classes]) logits[i] = -INFINITY;
}

Status predict(Predictor *p, const uint8_t *pixels, int64_t count, float *logits) {
    Status s = forward(p, pixels, count, logits);
    if (s == STATUS_OK && p->tta != TTA_NONE) s = average_views(p, pixels, count, logits);
    if (s == STATUS_OK && p->barred) bar_classes(p, count, logits);
    if (s != STATUS_MEMORY) return s;
    return status_context(s, "a batch of %lld images does not fit, try a smaller --batch-size",
                          (long long)count);
}

bool scores_are_numbers(const float *logits, int64_t classes) {
    for (int64_t i = 0; i < classes; i++)
        if (!(logits[i] < INFINITY)) return false;
    return true;
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

static ImageScore image_score(const float *row, int64_t classes, int64_t label) {
    return (ImageScore){loss_row(row, classes, label), (int32_t)label_rank(row, classes, label), 1};
}

void score_images(ImageScore *out, const float *logits, int64_t count, int64_t classes,
                  const int64_t *labels, const uint8_t *valid) {
    for (int64_t i = 0; i < count; i++) {
        const bool left_out = valid && !valid[i];
        out[i] = left_out ? (ImageScore){0} : image_score(logits + i * classes, classes, labels[i]);
    }
}

void score_join(Score *s, const ImageScore *images, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!images[i].valid) {
            s->left_out++;
            continue;
        }
        s->scored++;
        s->top1 += images[i].rank == 0;
        s->top5 += images[i].rank < 5;
        s->not_finite += !isfinite(images[i].loss);
        s->loss_sum += images[i].loss;
    }
}

Status score_check(const Score *s) {
    if (s->not_finite == 0) return STATUS_OK;
    return status_set(STATUS_NUMERIC,
                      "the scores of %lld of %lld images are not finite: the weights are damaged, "
                      "or --precision is too narrow for them ('ttv inspect --stats' tells which)",
                      (long long)s->not_finite, (long long)s->scored);
}

void score_add(Score *s, const float *logits, int64_t count, int64_t classes, const int64_t *labels,
               const uint8_t *valid) {
    for (int64_t i = 0; i < count; i++) {
        ImageScore image;
        score_images(&image, logits + i * classes, 1, classes, labels + i,
                     valid ? valid + i : NULL);
        score_join(s, &image, 1);
    }
}
