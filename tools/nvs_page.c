/* One HTML file that shows a rendering: pictures are embedded, nothing is fetched. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/nvs_render_output.h"
#include "tools/page.h"

enum { PAGE_VIEWS = 240, PAGE_ANIMATION = 64 << 20 };

static Status put_head(FileWriter *f, const NvsRender *r) {
    TRY(page_format(f, "<p>%lld views of %lldx%lld pixels, rendered from %lld input views.",
                    (long long)r->count, (long long)r->view.width, (long long)r->view.height,
                    (long long)r->inputs));
    if (r->set && scene_synthetic(scene_set_at(r->set, r->scene)))
        TRY(page_put(f, " The scene is synthetic: procedurally built, not photographed."));
    return page_put(f, "</p>\n");
}

static Status put_inputs(FileWriter *f, const NvsRender *r) {
    TRY(page_put(f, "<h2>Input views</h2>\n"));
    if (!r->pixels)
        return page_put(f, "<p>Read from a saved scene, which holds no pictures.</p>\n");
    for (int64_t i = 0; i < r->inputs; i++) {
        const Image image = render_input(r, i);
        TRY(page_put(f, "<figure>"));
        TRY(page_picture(f, "input view", &image));
        TRY(page_format(f, "<figcaption>frame %lld</figcaption></figure>\n",
                        (long long)r->input_frames[i]));
    }
    return STATUS_OK;
}

static Status put_cell(FileWriter *f, const char *alt, const Image *image) {
    TRY(page_put(f, "<td>"));
    TRY(page_picture(f, alt, image));
    return page_put(f, "</td>");
}

static Status put_numbers(FileWriter *f, double psnr, double ssim) {
    TRY(isinf(psnr) ? page_put(f, "<td>identical</td>") : page_format(f, "<td>%.4f</td>", psnr));
    return isnan(ssim) ? page_put(f, "<td></td></tr>\n")
                       : page_format(f, "<td>%.5f</td></tr>\n", ssim);
}

static Status put_row(FileWriter *f, NvsRender *r, const RenderOutput *o,
                      const RenderScores *scores, int64_t i, uint8_t *pixels) {
    const int64_t view = scores->views[i], frame = r->frames[view];
    const Image truth = {pixels, r->view.width, r->view.height}, render = render_view(r, view);
    const ScoreOptions scoring = {.ssim = false};
    const Picture a = picture_of_image(&truth, "truth"), b = picture_of_image(&render, "render");
    ViewCamera camera;
    Image map;
    TRY(view_load(r->set, r->scene, frame, &r->view, &r->scratch, pixels, &camera, NULL));
    TRY(page_format(f, "<tr><td>%lld</td>", (long long)frame));
    TRY(put_cell(f, "truth", &truth));
    TRY(put_cell(f, "render", &render));
    TRY(score_error_map(&a, &b, &scoring, o->error_full, &map));
    Status s = put_cell(f, "error", &map);
    image_free(&map);
    TRY(s);
    return put_numbers(f, scores->scores[i].psnr, scores->scores[i].ssim);
}

static Status put_comparisons(FileWriter *f, NvsRender *r, const RenderOutput *o,
                              const RenderScores *scores) {
    void *pixels;
    if (scores->count == 0) return STATUS_OK;
    TRY(page_format(f,
                    "<h2>Beside the truth</h2>\n<p>Error: mean absolute difference over the "
                    "channels, black for none, white from %g of the range on. PSNR in dB of 8-bit "
                    "pixels, SSIM with a Gaussian window of 11.</p>\n<table><tr><th>frame</th>"
                    "<th>truth</th><th>render</th><th>error</th><th>PSNR</th><th>SSIM</th></tr>\n",
                    o->error_full));
    TRY(mem_alloc(&pixels, r->view.width * r->view.height, 3, "a view"));
    Status s = STATUS_OK;
    for (int64_t i = 0; s == STATUS_OK && i < scores->count; i++)
        s = put_row(f, r, o, scores, i, pixels);
    mem_free(pixels);
    TRY(s);
    TRY(page_put(f, "<tr><th>mean</th><th></th><th></th><th></th>"));
    TRY(put_numbers(f, scores->summary.psnr_mean, scores->summary.ssim_mean));
    return page_put(f, "</table>\n");
}

static Status put_views(FileWriter *f, const NvsRender *r) {
    const int64_t shown = r->count < PAGE_VIEWS ? r->count : PAGE_VIEWS;
    TRY(page_put(f, "<h2>Rendered views</h2>\n"));
    if (shown < r->count)
        TRY(page_format(f, "<p>%lld of them, at even distances.</p>\n", (long long)shown));
    for (int64_t k = 0; k < shown; k++) {
        const int64_t i = k * r->count / shown;
        const Image image = render_view(r, i);
        TRY(page_put(f, "<figure>"));
        TRY(page_picture(f, "rendered view", &image));
        TRY(page_format(f, "<figcaption>%s %lld</figcaption></figure>\n",
                        r->frames ? "frame" : "view", (long long)(r->frames ? r->frames[i] : i)));
    }
    return STATUS_OK;
}

/* The animation as it lies in the folder; browsers play both kinds in an <img>. */
static Status put_animation(FileWriter *f, const NvsRender *r, const RenderOutput *o) {
    char *path, *bytes;
    size_t size;
    if ((!o->apng && !o->gif) || r->count < 2) return STATUS_OK;
    TRY(path_join(&path, o->folder, o->apng ? "render.apng" : "render.gif"));
    Status s = file_read(path, PAGE_ANIMATION, &bytes, &size);
    mem_free(path);
    if (s == STATUS_DATA) {
        note("the animation is left out of page.html: it is larger than 64 MiB");
        return STATUS_OK;
    }
    TRY(s);
    s = page_put(f, "<h2>Animation</h2>\n<figure>");
    if (s == STATUS_OK)
        s = page_image(f, o->apng ? "apng" : "gif", "all views in turn", bytes, size);
    mem_free(bytes);
    return s == STATUS_OK ? page_put(f, "</figure>\n") : s;
}

static Status put_page(FileWriter *f, NvsRender *r, const RenderOutput *o,
                       const RenderScores *scores) {
    TRY(put_head(f, r));
    TRY(put_animation(f, r, o));
    TRY(put_inputs(f, r));
    TRY(put_comparisons(f, r, o, scores));
    return put_views(f, r);
}

Status render_page(NvsRender *r, const RenderOutput *o, const RenderScores *scores) {
    FileWriter *f;
    char *path, title[CONFIG_TEXT + 16];
    snprintf(title, sizeof title, "Scene %s", r->name);
    TRY(path_join(&path, o->folder, "page.html"));
    Status s = page_open(path, title, &f);
    mem_free(path);
    TRY(s);
    return page_close(f, put_page(f, r, o, scores));
}
