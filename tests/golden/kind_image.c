/* images/image.safetensors: Pillow-exact resampling. resize.<n>.<filter>.<h>x<w> from
 * resize.<n>.src, and crop.<filter>.top<t>_left<l>_h<h>_w<w>.to<h>x<w> from crop.src; no byte may
 * differ. score.<n>.{psnr,ssim} of score.<n>.{a,b}: 1e-6 dB and 1e-5. */
#include "golden.h"

#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "datasets/resize.h"
#include "datasets/score.h"

typedef struct Box {
    int64_t top, left, height, width;
} Box;

static bool recognise(const SafeFile *f) {
    for (int64_t i = 0; i < safetensors_count(f); i++) {
        const char *name = safetensors_at(f, i)->name;
        if (strncmp(name, "resize.", 7) == 0 || strncmp(name, "crop.", 5) == 0 ||
            strncmp(name, "score.", 6) == 0)
            return true;
    }
    return false;
}

static Status find_filter(const char *name, const char *word, size_t length, Filter *out) {
    const char *const names[] = {"bilinear", "bicubic", "lanczos"};
    const Filter filters[] = {FILTER_BILINEAR, FILTER_BICUBIC, FILTER_LANCZOS};
    for (int i = 0; i < 3; i++) {
        if (strlen(names[i]) == length && strncmp(names[i], word, length) == 0) {
            *out = filters[i];
            return STATUS_OK;
        }
    }
    return status_set(STATUS_DATA, "tensor '%s': unknown filter '%.*s'", name, (int)length, word);
}

static Status check_rgb(const SafeEntry *e) {
    if (e->dtype == DTYPE_U8 && e->rank == 3 && e->shape[2] == 3) return STATUS_OK;
    return status_set(STATUS_DATA, "tensor '%s' is not U8 [h,w,3]", e->name);
}

/* box NULL: the whole image. */
static Status check_case(Golden *g, const char *source, const SafeEntry *want, Filter filter,
                         const Box *box) {
    const SafeEntry *e = NULL;
    TRY(golden_entry(g, &e, source));
    TRY(check_rgb(e));
    TRY(check_rgb(want));
    const Box whole = {0, 0, e->shape[0], e->shape[1]};
    if (!box) box = &whole;
    Image src = {.height = e->shape[0], .width = e->shape[1]};
    void *pixels, *out = NULL;
    TRY(mem_alloc(&pixels, (int64_t)e->bytes, 1, "source image"));
    memcpy(pixels, e->data, e->bytes);
    src.pixels = pixels;
    ResizeScratch scratch = {0};
    Status s = mem_alloc(&out, (int64_t)want->bytes, 1, "resized image");
    if (s == STATUS_OK)
        s = resize_box(&src, box->left, box->top, box->width, box->height, filter, out,
                       want->shape[1], want->shape[0], &scratch);
    if (s == STATUS_OK) s = golden_compare_bytes(g, want->name, out, (int64_t)want->bytes);
    resize_scratch_free(&scratch);
    mem_free(out);
    mem_free(pixels);
    return s;
}

static Status check_resize(Golden *g, const SafeEntry *want) {
    const char *number = want->name + strlen("resize.");
    const char *word = strchr(number, '.');
    const char *size = word ? strchr(word + 1, '.') : NULL;
    char source[64];
    if (!size) return status_set(STATUS_DATA, "tensor '%s': unknown resize case", want->name);
    snprintf(source, sizeof source, "resize.%.*s.src", (int)(word - number), number);
    Filter filter = FILTER_BILINEAR;
    TRY(find_filter(want->name, word + 1, (size_t)(size - word - 1), &filter));
    return check_case(g, source, want, filter, NULL);
}

static Status check_crop(Golden *g, const SafeEntry *want) {
    const char *word = want->name + strlen("crop.");
    const char *rest = strchr(word, '.');
    long long top, left, height, width;
    if (!rest ||
        sscanf(rest, ".top%lld_left%lld_h%lld_w%lld.to", &top, &left, &height, &width) != 4)
        return status_set(STATUS_DATA, "tensor '%s': unknown crop case", want->name);
    Filter filter = FILTER_BILINEAR;
    TRY(find_filter(want->name, word, (size_t)(rest - word), &filter));
    const Box box = {top, left, height, width};
    return check_case(g, "crop.src", want, filter, &box);
}

static Status read_picture(Golden *g, const char *number, char letter, Picture *out) {
    char name[64];
    const SafeEntry *e = NULL;
    snprintf(name, sizeof name, "score.%s.%c", number, letter);
    TRY(golden_entry(g, &e, name));
    TRY(check_rgb(e));
    *out = (Picture){.name = e->name,
                     .bytes = e->data,
                     .width = e->shape[1],
                     .height = e->shape[0],
                     .colors = 3,
                     .bits = 8};
    return STATUS_OK;
}

/* The case of "score.<n>.psnr", its SSIM included. */
static Status check_score(Golden *g, const SafeEntry *psnr) {
    char number[16], name[64];
    if (sscanf(psnr->name, "score.%15[0-9].", number) != 1)
        return status_set(STATUS_DATA, "tensor '%s': unknown score case", psnr->name);
    Picture a, b;
    TRY(read_picture(g, number, 'a', &a));
    TRY(read_picture(g, number, 'b', &b));
    ScoreOptions o = {.range = 255, .ssim = true};
    Score score;
    TRY(score_pictures(&a, &b, &o, &score));
    TRY(golden_compare_number(g, psnr->name, score.psnr, 1e-6));
    snprintf(name, sizeof name, "score.%s.ssim", number);
    return golden_compare_number(g, name, score.ssim, 1e-5);
}

static bool ends_with(const char *name, const char *ending) {
    size_t n = strlen(name), m = strlen(ending);
    return n > m && strcmp(name + n - m, ending) == 0;
}

static Status run(Golden *g) {
    for (int64_t i = 0; i < safetensors_count(g->file); i++) {
        const SafeEntry *e = safetensors_at(g->file, i);
        if (ends_with(e->name, ".src")) continue;
        if (strncmp(e->name, "resize.", 7) == 0) TRY(check_resize(g, e));
        if (strncmp(e->name, "crop.", 5) == 0) TRY(check_crop(g, e));
        if (strncmp(e->name, "score.", 6) == 0 && ends_with(e->name, ".psnr"))
            TRY(check_score(g, e));
    }
    return STATUS_OK;
}

const GoldenKind golden_kind_image = {"images/image", recognise, run};
