#include "tools/nvs_render_output.h"

#include <stdio.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/apng.h"
#include "datasets/compose.h"
#include "datasets/gif.h"
#include "datasets/y4m.h"
#include "tools/cli.h"
#include "tools/movie.h"

Image render_view(const NvsRender *r, int64_t i) {
    const int64_t size = r->view.width * r->view.height * 3;
    return (Image){r->rendered + i * size, r->view.width, r->view.height};
}

Image render_input(const NvsRender *r, int64_t i) {
    const int64_t size = r->view.width * r->view.height * 3;
    return (Image){r->pixels + i * size, r->view.width, r->view.height};
}

void render_scores_free(RenderScores *s) {
    mem_free(s->views);
    mem_free(s->scores);
    *s = (RenderScores){0};
}

static Status write_png(const RenderOutput *o, const char *name, const Image *image) {
    char *path;
    TRY(path_join(&path, o->folder, name));
    Status s = image_write_png(path, image);
    mem_free(path);
    return s;
}

static Status write_frames(const NvsRender *r, const RenderOutput *o) {
    char name[48];
    for (int64_t i = 0; i < r->count; i++) {
        const Image image = render_view(r, i);
        snprintf(name, sizeof name, "frame-%05lld.png", (long long)i);
        TRY(write_png(o, name, &image));
    }
    return STATUS_OK;
}

enum { SHEET_VIEWS = 64 };

/* Of a long path, views at even distances. */
static Status write_sheet(const NvsRender *r, const RenderOutput *o) {
    Image views[SHEET_VIEWS], sheet;
    const int64_t shown = r->count < SHEET_VIEWS ? r->count : SHEET_VIEWS;
    const SheetOptions options = sheet_options_default();
    for (int64_t i = 0; i < shown; i++) views[i] = render_view(r, i * r->count / shown);
    TRY(contact_sheet(views, NULL, shown, &options, &sheet));
    Status s = write_png(o, "sheet.png", &sheet);
    image_free(&sheet);
    return s;
}

/* ---- animations ---- */

static Status write_apng(const NvsRender *r, const RenderOutput *o, const char *path) {
    const ApngOptions options = {r->view.width, r->view.height, r->count, o->fps, 0};
    ApngWriter *w;
    TRY(apng_open(path, &options, &w));
    for (int64_t i = 0; i < r->count; i++) {
        const Image image = render_view(r, i);
        Status s = apng_frame(w, &image);
        if (s == STATUS_OK) continue;
        apng_abort(w);
        return s;
    }
    return apng_commit(w);
}

static Status write_gif(const NvsRender *r, const RenderOutput *o, const char *path) {
    const GifOptions options = {r->view.width, r->view.height, o->fps, 0};
    GifWriter *w;
    TRY(gif_open(path, &options, &w));
    for (int64_t i = 0; i < r->count; i++) {
        const Image image = render_view(r, i);
        Status s = gif_frame(w, &image);
        if (s == STATUS_OK) continue;
        gif_abort(w);
        return s;
    }
    return gif_commit(w);
}

static Status write_mp4(const NvsRender *r, const RenderOutput *o, const char *path) {
    return movie_write(path, r->rendered, r->count, r->view.width, r->view.height, o->fps);
}

static Status write_y4m(const NvsRender *r, const RenderOutput *o, const char *path) {
    return y4m_write(path, r->rendered, r->count, r->view.width, r->view.height, o->fps);
}

typedef Status (*WriteAnimation)(const NvsRender *r, const RenderOutput *o, const char *path);

static Status write_animation(const NvsRender *r, const RenderOutput *o, bool wanted,
                              const char *name, WriteAnimation write) {
    char *path;
    if (!wanted) return STATUS_OK;
    TRY(path_join(&path, o->folder, name));
    Status s = write(r, o, path);
    mem_free(path);
    return s;
}

/* ---- beside the truth ---- */

/* Truth, render and error of one frame; its PSNR. */
static Status compare_frame(const RenderOutput *o, const Image *truth, const Image *render,
                            int64_t frame, Score *score) {
    const SheetOptions sheet = sheet_options_default();
    const ScoreOptions scoring = {.ssim = true};
    Picture a = picture_of_image(truth, "truth"), b = picture_of_image(render, "render");
    char name[48];
    Image image;
    TRY(score_pictures(&a, &b, &scoring, score));
    TRY(compare_sheet(truth, render, o->error_full, &sheet, &image));
    snprintf(name, sizeof name, "compare-%05lld.png", (long long)frame);
    Status s = write_png(o, name, &image);
    image_free(&image);
    return s;
}

static Status compare_frames(NvsRender *r, const RenderOutput *o, uint8_t *pixels,
                             RenderScores *out) {
    const Scene *scene = scene_set_at(r->set, r->scene);
    for (int64_t i = 0; i < r->count; i++) {
        const int64_t frame = r->frames[i];
        const Image truth = {pixels, r->view.width, r->view.height}, render = render_view(r, i);
        ViewCamera camera;
        if (scene->frames[frame].image < 0) {
            note("frame %lld has no picture to compare with", (long long)frame);
            continue;
        }
        Score *score = &out->scores[out->count];
        TRY(view_load(r->set, r->scene, frame, &r->view, &r->scratch, pixels, &camera, NULL));
        TRY(compare_frame(o, &truth, &render, frame, score));
        if (!common.json)
            out_printf("frame %lld: psnr %.6f dB  ssim %.6f\n", (long long)frame, score->psnr,
                       score->ssim);
        out->views[out->count++] = i;
    }
    return STATUS_OK;
}

static Status compare_all(NvsRender *r, const RenderOutput *o, RenderScores *out) {
    void *block;
    TRY(mem_alloc(&block, r->count, sizeof(Score), "scores"));
    out->scores = block;
    TRY(mem_alloc(&block, r->count, sizeof(int64_t), "scores"));
    out->views = block;
    TRY(mem_alloc(&block, r->view.width * r->view.height, 3, "a view"));
    Status s = compare_frames(r, o, block, out);
    mem_free(block);
    return s == STATUS_OK ? score_summarise(out->scores, out->count, &out->summary) : s;
}

Status render_write(NvsRender *r, const RenderOutput *o, RenderScores *scores) {
    TRY(write_frames(r, o));
    TRY(write_sheet(r, o));
    TRY(write_animation(r, o, o->apng, "render.apng", write_apng));
    TRY(write_animation(r, o, o->gif, "render.gif", write_gif));
    TRY(write_animation(r, o, o->y4m, "render.y4m", write_y4m));
    if (r->frames) TRY(compare_all(r, o, scores));
    if (o->html) TRY(render_page(r, o, scores));
    return write_animation(r, o, o->mp4, "render.mp4", write_mp4);
}
