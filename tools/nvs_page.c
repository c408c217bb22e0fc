/* One HTML file that shows a rendering: pictures are embedded, nothing is fetched. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/nvs_render_output.h"

enum { PAGE_VIEWS = 240, PAGE_ANIMATION = 64 << 20, TEXT = 1200 };

/* ---- text ---- */

static Status put(FileWriter *f, const char *text) {
    return file_writer_write(f, text, strlen(text));
}

static Status put_format(FileWriter *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static Status put_format(FileWriter *f, const char *format, ...) {
    char text[TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return put(f, text);
}

/* Names come from files: nothing of them may become markup. */
static Status put_escaped(FileWriter *f, const char *text) {
    char shown[TEXT];
    text_printable(text, shown, sizeof shown);
    for (const char *p = shown; *p; p++) {
        const char one[2] = {*p, 0};
        const char *as = *p == '<' ? "&lt;" : *p == '>' ? "&gt;" : *p == '&' ? "&amp;" : one;
        TRY(put(f, *p == '"' ? "&quot;" : as));
    }
    return STATUS_OK;
}

static Status put_base64(FileWriter *f, const unsigned char *bytes, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char text[4096];
    size_t used = 0;
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = size - i;
        const unsigned a = bytes[i], b = left > 1 ? bytes[i + 1] : 0,
                       c = left > 2 ? bytes[i + 2] : 0;
        const unsigned word = a << 16 | b << 8 | c;
        text[used++] = digits[word >> 18];
        text[used++] = digits[word >> 12 & 63];
        text[used++] = left > 1 ? digits[word >> 6 & 63] : '=';
        text[used++] = left > 2 ? digits[word & 63] : '=';
        if (used + 4 <= sizeof text && left > 3) continue;
        TRY(file_writer_write(f, text, used));
        used = 0;
    }
    return STATUS_OK;
}

static Status put_image(FileWriter *f, const char *type, const char *alt, const void *bytes,
                        size_t size) {
    TRY(put_format(f, "<img alt=\"%s\" src=\"data:image/%s;base64,", alt, type));
    TRY(put_base64(f, bytes, size));
    return put(f, "\">");
}

static Status put_picture(FileWriter *f, const char *alt, const Image *image) {
    void *bytes;
    size_t size;
    TRY(image_encode_png(image, &bytes, &size));
    Status s = put_image(f, "png", alt, bytes, size);
    mem_free(bytes);
    return s;
}

/* ---- parts ---- */

static const char head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n<style>\n"
    ":root{color-scheme:light dark}\n"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}\n"
    "h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}\n"
    "table{border-collapse:collapse}th,td{padding:.3rem .6rem;text-align:right}\n"
    "th{border-bottom:1px solid #8888}td:first-child,th:first-child{text-align:left}\n"
    "figure{display:inline-block;margin:0 .5rem .5rem 0}figcaption{font-size:.8rem;opacity:.7}\n"
    "img{display:block;max-width:100%;image-rendering:auto}\n"
    "</style>\n<title>";

static Status put_head(FileWriter *f, const NvsRender *r) {
    TRY(put(f, head));
    TRY(put_escaped(f, r->name));
    TRY(put(f, "</title></head><body>\n<h1>Scene "));
    TRY(put_escaped(f, r->name));
    TRY(put_format(f, "</h1>\n<p>%lld views of %lldx%lld pixels, rendered from %lld input views.",
                   (long long)r->count, (long long)r->view.width, (long long)r->view.height,
                   (long long)r->inputs));
    if (r->set && scene_synthetic(scene_set_at(r->set, r->scene)))
        TRY(put(f, " The scene is synthetic: procedurally built, not photographed."));
    return put(f, "</p>\n");
}

static Status put_inputs(FileWriter *f, const NvsRender *r) {
    TRY(put(f, "<h2>Input views</h2>\n"));
    if (!r->pixels) return put(f, "<p>Read from a saved scene, which holds no pictures.</p>\n");
    for (int64_t i = 0; i < r->inputs; i++) {
        const Image image = render_input(r, i);
        TRY(put(f, "<figure>"));
        TRY(put_picture(f, "input view", &image));
        TRY(put_format(f, "<figcaption>frame %lld</figcaption></figure>\n",
                       (long long)r->input_frames[i]));
    }
    return STATUS_OK;
}

static Status put_cell(FileWriter *f, const char *alt, const Image *image) {
    TRY(put(f, "<td>"));
    TRY(put_picture(f, alt, image));
    return put(f, "</td>");
}

static Status put_numbers(FileWriter *f, double psnr, double ssim) {
    TRY(isinf(psnr) ? put(f, "<td>identical</td>") : put_format(f, "<td>%.4f</td>", psnr));
    return isnan(ssim) ? put(f, "<td></td></tr>\n") : put_format(f, "<td>%.5f</td></tr>\n", ssim);
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
    TRY(put_format(f, "<tr><td>%lld</td>", (long long)frame));
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
    TRY(put_format(f,
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
    TRY(put(f, "<tr><th>mean</th><th></th><th></th><th></th>"));
    TRY(put_numbers(f, scores->summary.psnr_mean, scores->summary.ssim_mean));
    return put(f, "</table>\n");
}

static Status put_views(FileWriter *f, const NvsRender *r) {
    const int64_t shown = r->count < PAGE_VIEWS ? r->count : PAGE_VIEWS;
    TRY(put(f, "<h2>Rendered views</h2>\n"));
    if (shown < r->count)
        TRY(put_format(f, "<p>%lld of them, at even distances.</p>\n", (long long)shown));
    for (int64_t k = 0; k < shown; k++) {
        const int64_t i = k * r->count / shown;
        const Image image = render_view(r, i);
        TRY(put(f, "<figure>"));
        TRY(put_picture(f, "rendered view", &image));
        TRY(put_format(f, "<figcaption>%s %lld</figcaption></figure>\n",
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
    s = put(f, "<h2>Animation</h2>\n<figure>");
    if (s == STATUS_OK)
        s = put_image(f, o->apng ? "apng" : "gif", "all views in turn", bytes, size);
    mem_free(bytes);
    return s == STATUS_OK ? put(f, "</figure>\n") : s;
}

static Status put_page(FileWriter *f, NvsRender *r, const RenderOutput *o,
                       const RenderScores *scores) {
    TRY(put_head(f, r));
    TRY(put_animation(f, r, o));
    TRY(put_inputs(f, r));
    TRY(put_comparisons(f, r, o, scores));
    TRY(put_views(f, r));
    return put(f, "</body></html>\n");
}

Status render_page(NvsRender *r, const RenderOutput *o, const RenderScores *scores) {
    FileWriter *f;
    char *path;
    TRY(path_join(&path, o->folder, "page.html"));
    Status s = file_writer_open(path, &f);
    mem_free(path);
    TRY(s);
    s = put_page(f, r, o, scores);
    if (s == STATUS_OK) return file_writer_commit(f);
    file_writer_abort(f);
    return s;
}
