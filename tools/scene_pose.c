#include "tools/scene_pose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

/* Sides and steps in pixels of the small frames. */
enum {
    SMALL = 200,
    RADIUS = 4,
    PATCH = 2 * RADIUS + 1,
    SEARCH = 64,
    PAIRS = 4,
    COLUMNS = 10,
    ROWS = 8
};

/* ---- frames ---- */

static Status source_size(const SceneSet *set, int64_t scene, int64_t frame, ImageInfo *info) {
    const void *bytes;
    size_t size;
    bool owned;
    char name[800];
    TRY(scene_bytes(set, scene, frame, &bytes, &size, &owned));
    Status s =
        image_probe(bytes, size, scene_frame_name(set, scene, frame, name, sizeof name), info);
    if (owned) mem_free((void *)(uintptr_t)bytes);
    return s;
}

static void make_grey(PoseFrame *f) {
    for (int64_t i = 0; i < f->image.width * f->image.height; i++) {
        const uint8_t *p = f->image.pixels + 3 * i;
        f->grey[i] = 0.299f * p[0] + 0.587f * p[1] + 0.114f * p[2];
    }
}

Status pose_frame_load(const SceneSet *set, int64_t scene, int64_t frame, int64_t longest,
                       PoseFrame *out) {
    ImageInfo info;
    ViewScratch scratch = {0};
    void *block;
    *out = (PoseFrame){.frame = scene_set_at(set, scene)->frames[frame]};
    TRY(source_size(set, scene, frame, &info));
    int64_t longer = info.width > info.height ? info.width : info.height;
    double scale = longer > longest ? (double)longest / (double)longer : 1;
    int64_t w = (int64_t)fmax(rint((double)info.width * scale), 1);
    int64_t h = (int64_t)fmax(rint((double)info.height * scale), 1);
    ViewOptions o = view_options_default(w, h);
    TRY(mem_alloc(&block, w * h, 3, "frame"));
    out->image = (Image){block, w, h};
    Status s = mem_alloc(&block, w * h, sizeof(float), "grey frame");
    out->grey = s == STATUS_OK ? block : NULL;
    if (s == STATUS_OK)
        s = view_load(set, scene, frame, &o, &scratch, out->image.pixels, &out->camera, NULL);
    view_scratch_free(&scratch);
    if (s != STATUS_OK) {
        pose_frame_free(out);
        return s;
    }
    make_grey(out);
    return STATUS_OK;
}

void pose_frame_free(PoseFrame *f) {
    image_free(&f->image);
    mem_free(f->grey);
    *f = (PoseFrame){0};
}

/* ---- corners ---- */

static float grey_at(const PoseFrame *f, int64_t x, int64_t y) {
    return f->grey[y * f->image.width + x];
}

/* Smaller eigenvalue of the gradients' second moments around a pixel (Shi and Tomasi). */
static double cornerness(const PoseFrame *f, int64_t x, int64_t y) {
    double xx = 0, xy = 0, yy = 0;
    for (int64_t j = y - 2; j <= y + 2; j++)
        for (int64_t i = x - 2; i <= x + 2; i++) {
            double gx = (double)grey_at(f, i + 1, j) - (double)grey_at(f, i - 1, j);
            double gy = (double)grey_at(f, i, j + 1) - (double)grey_at(f, i, j - 1);
            xx += gx * gx;
            xy += gx * gy;
            yy += gy * gy;
        }
    double half = 0.5 * (xx + yy), root = sqrt(0.25 * (xx - yy) * (xx - yy) + xy * xy);
    return half - root;
}

int pose_corners(const PoseFrame *f, int columns, int rows, PoseCorner *out) {
    const double weakest = 25 * 150; /* 25 pixels with gradients of 12 grey levels */
    int64_t margin = RADIUS + 1, w = f->image.width - 2 * margin, h = f->image.height - 2 * margin;
    int count = 0;
    if (w < columns || h < rows) return 0;
    for (int cell = 0; cell < columns * rows && count < POSE_MAX_CORNERS; cell++) {
        int64_t column = cell % columns, row = cell / columns;
        double best = weakest;
        PoseCorner corner = {-1, -1};
        for (int64_t y = margin + row * h / rows; y < margin + (row + 1) * h / rows; y++)
            for (int64_t x = margin + column * w / columns; x < margin + (column + 1) * w / columns;
                 x++) {
                double c = cornerness(f, x, y);
                if (c <= best) continue;
                best = c;
                corner = (PoseCorner){x, y};
            }
        if (corner.x >= 0) out[count++] = corner;
    }
    return count;
}

/* ---- lines ---- */

/* c = a b, both 4x4, row by row. */
static void multiply(const double a[16], const double b[16], double c[16]) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            c[4 * i + j] = 0;
            for (int k = 0; k < 4; k++) c[4 * i + j] += a[4 * i + k] * b[4 * k + j];
        }
}

PoseLine pose_line(const PoseFrame *a, const PoseFrame *b, double x, double y, bool inverted) {
    PoseLine l;
    double m[16];
    const double *ka = a->camera.intrinsics, *kb = b->camera.intrinsics;
    multiply(inverted ? b->camera.c2w : b->camera.w2c, inverted ? a->camera.w2c : a->camera.c2w, m);
    const double ray[3] = {(x - ka[2]) / ka[0], (y - ka[3]) / ka[1], 1};
    double r[3], t[3] = {m[3], m[7], m[11]};
    for (int i = 0; i < 3; i++)
        r[i] = m[4 * i] * ray[0] + m[4 * i + 1] * ray[1] + m[4 * i + 2] * ray[2];
    double length = sqrt(t[0] * t[0] + t[1] * t[1] + t[2] * t[2]);
    double unit = length > 1e-9 ? 1 / (kb[0] * length) : 0; /* a pixel sideways */
    for (int i = 0; i < 3; i++) t[i] *= unit;
    for (int i = 0; i < 2; i++) {
        l.at_infinity[i] = kb[i] * r[i] + kb[2 + i] * r[2];
        l.step[i] = kb[i] * t[i] + kb[2 + i] * t[2];
    }
    l.at_infinity[2] = r[2];
    l.step[2] = t[2];
    return l;
}

bool pose_line_at(const PoseLine *l, double k, double *x, double *y) {
    double w = l->at_infinity[2] + k * l->step[2];
    if (w < 0.05) return false;
    *x = (l->at_infinity[0] + k * l->step[0]) / w;
    *y = (l->at_infinity[1] + k * l->step[1]) / w;
    return true;
}

/* ---- matching ---- */

/* Surroundings of a point, bilinear, mean 0 and length 1; false near the edge or without
 * structure. */
static bool take_patch(const PoseFrame *f, double x, double y, double patch[PATCH * PATCH]) {
    double left = x - 0.5 - RADIUS, top = y - 0.5 - RADIUS, sum = 0, square = 0;
    if (!(left >= 0) || !(top >= 0) || left + PATCH >= (double)f->image.width ||
        top + PATCH >= (double)f->image.height)
        return false;
    int64_t ix = (int64_t)left, iy = (int64_t)top;
    double u = left - (double)ix, v = top - (double)iy;
    for (int j = 0; j < PATCH; j++)
        for (int i = 0; i < PATCH; i++) {
            const float *p = f->grey + (iy + j) * f->image.width + ix + i;
            double high = p[0] * (1 - u) + p[1] * u;
            double low = p[f->image.width] * (1 - u) + p[f->image.width + 1] * u;
            double g = high * (1 - v) + low * v;
            patch[j * PATCH + i] = g;
            sum += g;
        }
    for (int i = 0; i < PATCH * PATCH; i++) {
        patch[i] -= sum / (PATCH * PATCH);
        square += patch[i] * patch[i];
    }
    if (square < PATCH * PATCH) return false;
    for (int i = 0; i < PATCH * PATCH; i++) patch[i] /= sqrt(square);
    return true;
}

double pose_match(const PoseFrame *a, PoseCorner corner, const PoseFrame *b, const PoseLine *l,
                  int reach, double best[2]) {
    double want[PATCH * PATCH], have[PATCH * PATCH], top = -1, x, y;
    if (!take_patch(a, (double)corner.x + 0.5, (double)corner.y + 0.5, want)) return -1;
    for (int k = 0; k <= 2 * reach; k++) { /* half-pixel steps: depths from infinity inwards */
        if (!pose_line_at(l, 0.5 * k, &x, &y) || !take_patch(b, x, y, have)) continue;
        double dot = 0;
        for (int i = 0; i < PATCH * PATCH; i++) dot += want[i] * have[i];
        if (dot <= top) continue;
        top = dot;
        best[0] = x;
        best[1] = y;
    }
    return top;
}

/* ---- verdict ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    if (count == 0) return 0;
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

typedef struct Scores {
    double fit[2][PAIRS * POSE_MAX_CORNERS];
    int count;
} Scores;

/* Corners that one reading cannot find at all count as -1 there: wrong cameras look elsewhere. */
static void score_pair(const PoseFrame *a, const PoseFrame *b, Scores *s) {
    PoseCorner corners[POSE_MAX_CORNERS];
    int count = pose_corners(a, COLUMNS, ROWS, corners);
    for (int i = 0; i < count; i++) {
        double best[2], fit[2];
        for (int k = 0; k < 2; k++) {
            PoseLine l =
                pose_line(a, b, (double)corners[i].x + 0.5, (double)corners[i].y + 0.5, k == 1);
            fit[k] = pose_match(a, corners[i], b, &l, SEARCH, best);
        }
        if (fit[0] < 0 && fit[1] < 0) continue; /* out of the picture either way */
        s->fit[0][s->count] = fit[0];
        s->fit[1][s->count++] = fit[1];
    }
}

/* Position of the n-th frame that has a picture; -1: there are fewer. */
static int64_t nth_picture(const Scene *s, int64_t n) {
    for (int64_t i = 0; i < s->count; i++)
        if (s->frames[i].image >= 0 && n-- == 0) return i;
    return -1;
}

static int64_t pair_gap(int64_t pictures) {
    int64_t gap = pictures / 12;
    return gap < 1 ? 1 : gap;
}

bool pose_choose_pair(const Scene *s, int64_t frames[2]) {
    int64_t pictures = s->count - s->missing;
    if (pictures < 2) return false;
    int64_t first = (pictures - pair_gap(pictures)) / 2;
    frames[0] = nth_picture(s, first);
    frames[1] = nth_picture(s, first + pair_gap(pictures));
    return true;
}

static Status score_frames(const SceneSet *set, int64_t scene, int64_t a, int64_t b, Scores *s) {
    PoseFrame one, two;
    TRY(pose_frame_load(set, scene, a, SMALL, &one));
    Status status = pose_frame_load(set, scene, b, SMALL, &two);
    if (status == STATUS_OK) {
        score_pair(&one, &two, s);
        pose_frame_free(&two);
    }
    pose_frame_free(&one);
    return status;
}

Status pose_check(const SceneSet *set, int64_t scene, PoseCheck *out) {
    const Scene *s = scene_set_at(set, scene);
    const int enough = 20;
    /* Of 193 clips with verified cameras these limits leave 12 open and misjudge none, read either
     * way round. */
    const double clear = 0.03, found = 0.6;
    int64_t pictures = s->count - s->missing, gap = pair_gap(pictures);
    void *block;
    *out = (PoseCheck){0};
    TRY(mem_alloc(&block, 1, sizeof(Scores), "pose check"));
    Scores *scores = block;
    Status status = STATUS_OK;
    for (int p = 0; status == STATUS_OK && p < PAIRS && pictures > gap; p++) {
        int64_t first = (pictures - 1 - gap) * p / (PAIRS - 1);
        status =
            score_frames(set, scene, nth_picture(s, first), nth_picture(s, first + gap), scores);
    }
    out->corners = scores->count;
    out->fit = median(scores->fit[0], scores->count);
    out->inverted_fit = median(scores->fit[1], scores->count);
    if (scores->count >= enough && fmax(out->fit, out->inverted_fit) > found &&
        fabs(out->fit - out->inverted_fit) > clear)
        out->verdict = out->fit > out->inverted_fit ? POSE_FITS : POSE_INVERTED;
    mem_free(block);
    return status;
}
