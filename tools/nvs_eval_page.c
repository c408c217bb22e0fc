/* A page beside the pictures that `ttv nvs eval` keeps: truth, render and difference of every
 * target view with its scores, the worst scenes first. Links are relative and nothing is fetched.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "tools/nvs_eval.h"
#include "tools/page.h"

static const char style[] =
    "<style>.d{position:relative;isolation:isolate;filter:brightness(4)}"
    ".d img+img{position:absolute;left:0;top:0;mix-blend-mode:difference}</style>\n";

/* A path of the pictures as a link: all but plain characters as %XX. */
static Status put_link(FileWriter *f, const char *kind, const char *scene, int64_t frame) {
    TRY(page_format(f, "%s/", kind));
    if (scene[0] == '.') TRY(page_put(f, "_")); /* as nvs_eval_save names it */
    for (const char *c = scene; *c; c++) {
        const unsigned char byte = (unsigned char)*c;
        const bool plain = (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
                           (byte >= 'a' && byte <= 'z') || strchr("-_./", byte) != NULL;
        TRY(page_format(f, plain ? "%c" : "%%%02X", byte));
    }
    return page_format(f, "/%06lld.png", (long long)frame);
}

static Status put_picture(FileWriter *f, const NvsEval *e, const char *kind, const char *scene,
                          int64_t frame) {
    TRY(page_format(f, "<img loading=\"lazy\" alt=\"%s\" width=\"%lld\" height=\"%lld\" src=\"",
                    kind, (long long)e->view.width, (long long)e->view.height));
    TRY(put_link(f, kind, scene, frame));
    return page_put(f, "\">");
}

static Status put_number(FileWriter *f, double x, int digits) {
    if (isnan(x)) return page_put(f, "<td></td>");
    if (isinf(x)) return page_put(f, "<td>identical</td>");
    return page_format(f, "<td>%.*f</td>", digits, x);
}

static Status put_target(FileWriter *f, const NvsEval *e, int64_t i, int64_t t) {
    const ViewSample *s = &e->index.entries[i].sample;
    const char *scene = e->index.entries[i].scene;
    const int64_t frame = s->frames[s->inputs + t];
    TRY(page_format(f, "<tr><td>%lld</td><td>", (long long)frame));
    TRY(put_picture(f, e, "truth", scene, frame));
    TRY(page_put(f, "</td><td>"));
    TRY(put_picture(f, e, "render", scene, frame));
    TRY(page_put(f, "</td><td><div class=\"d\">"));
    TRY(put_picture(f, e, "truth", scene, frame));
    TRY(put_picture(f, e, "render", scene, frame));
    TRY(page_put(f, "</div></td>"));
    for (int m = 0; m < NVS_METHODS; m++) {
        const Score *score = &e->scores[i][m * s->targets + t];
        TRY(put_number(f, score->psnr, 2));
        TRY(put_number(f, score->ssim, 4));
    }
    return page_put(f, "</tr>\n");
}

static Status put_heads(FileWriter *f) {
    TRY(page_put(f,
                 "<table><tr><th>frame</th><th>truth</th><th>render</th><th>4 x difference</th>"));
    for (int m = 0; m < NVS_METHODS; m++) {
        const char *name = nvs_method_name((NvsMethod)m);
        TRY(page_format(f, "<th>%s, dB</th><th>SSIM</th>", name));
    }
    return page_put(f, "</tr>\n");
}

static Status put_scene(FileWriter *f, const NvsEval *e, int64_t i) {
    const EvalEntry *entry = &e->index.entries[i];
    const ViewSample *s = &entry->sample;
    TRY(page_put(f, "<h2>"));
    TRY(page_escaped(f, entry->scene));
    TRY(page_format(f, ": %.2f dB</h2>\n", e->scenes[i][0].psnr_mean));
    for (int64_t v = 0; v < s->inputs; v++) {
        TRY(page_put(f, "<figure>"));
        TRY(put_picture(f, e, "input", entry->scene, s->frames[v]));
        TRY(page_format(f, "<figcaption>input, frame %lld</figcaption></figure>\n",
                        (long long)s->frames[v]));
    }
    TRY(put_heads(f));
    for (int64_t t = 0; t < s->targets; t++) TRY(put_target(f, e, i, t));
    return page_put(f, "</table>\n");
}

static Status put_summary(FileWriter *f, const NvsEval *e) {
    TRY(page_put(f, style));
    TRY(page_put(f, "<p>Checkpoint "));
    TRY(page_escaped(f, e->checkpoint));
    TRY(page_put(f, ", scenes of "));
    TRY(page_escaped(f, e->root));
    TRY(page_format(f, ": %lld scenes, %lld target views of %lldx%lld; worst scenes first.</p>\n",
                    (long long)e->evaluated, (long long)e->views, (long long)e->view.width,
                    (long long)e->view.height));
    TRY(page_put(f, "<table><tr><th>mean over scenes</th><th>PSNR, dB</th><th>SSIM</th></tr>\n"));
    for (int m = 0; m < NVS_METHODS; m++) {
        TRY(page_format(f, "<tr><td>%s</td>", nvs_method_name((NvsMethod)m)));
        TRY(put_number(f, e->psnr[m], 2));
        TRY(put_number(f, e->ssim[m], 4));
        TRY(page_put(f, "</tr>\n"));
    }
    return page_put(f, "</table>\n");
}

static int by_psnr(const void *a, const void *b, void *user) {
    const NvsEval *e = user;
    const int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    const double x = e->scenes[i][0].psnr_mean, y = e->scenes[j][0].psnr_mean;
    if (isnan(x) || isnan(y) || x == y)
        return isnan(x) != isnan(y) ? isnan(x) - isnan(y) : i < j ? -1 : i > j;
    return x < y ? -1 : 1;
}

static Status put_scenes(FileWriter *f, const NvsEval *e) {
    void *block;
    int64_t n = 0;
    TRY(mem_alloc(&block, e->index.count, sizeof(int64_t), "order of scenes"));
    int64_t *order = block;
    for (int64_t i = 0; i < e->index.count; i++)
        if (e->scores[i]) order[n++] = i;
    if (n > 1) qsort_r(order, (size_t)n, sizeof *order, by_psnr, (void *)(uintptr_t)e);
    Status s = STATUS_OK;
    for (int64_t k = 0; k < n && s == STATUS_OK; k++) s = put_scene(f, e, order[k]);
    mem_free(block);
    return s;
}

Status nvs_eval_page(const NvsEval *e) {
    FileWriter *f;
    char *path;
    TRY(file_make_folder(e->save));
    TRY(path_join(&path, e->save, "index.html"));
    Status s = page_open(path, "Rendered views beside the truth", &f);
    mem_free(path);
    TRY(s);
    s = put_summary(f, e);
    if (s == STATUS_OK) s = put_scenes(f, e);
    return page_close(f, s);
}
