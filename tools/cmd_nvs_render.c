/* ttv nvs render: new views of a scene between, or at, the cameras of its frames. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/apng.h"
#include "datasets/compose.h"
#include "datasets/score.h"
#include "tools/cli.h"
#include "tools/nvs_render.h"
#include "tools/sections.h"

typedef struct RenderOptions {
    char checkpoint[CONFIG_TEXT], root[CONFIG_TEXT], split[CONFIG_TEXT], scene[CONFIG_TEXT];
    char inputs[CONFIG_TEXT], targets[CONFIG_TEXT], output[CONFIG_TEXT];
    int weights; /* WeightsChoice */
    int64_t frames;
    double fps, error_full;
    bool overwrite;
} RenderOptions;

static RenderOptions options;

#define FIELD(name) offsetof(RenderOptions, name)
static const Option render_options[] = {
    {"checkpoint", OPTION_STRING, FIELD(checkpoint), "", 0, 0, NULL, "checkpoint",
     "weights file or run folder (its best, else its last)"},
    {"weights", OPTION_CHOICE, FIELD(weights), "auto", 0, 0, WEIGHTS_CHOICES, "weights",
     WEIGHTS_HELP},
    {"root", OPTION_STRING, FIELD(root), "", 0, 0, NULL, "data-dir",
     "posed scenes: folders or tar files, with commas between"},
    {"split", OPTION_STRING, FIELD(split), "", 0, 0, NULL, "split", "split; empty: all"},
    {"scene", OPTION_STRING, FIELD(scene), "", 0, 0, NULL, "scene",
     "name of the scene; empty: the first that is usable"},
    {"inputs", OPTION_STRING, FIELD(inputs), "0,1", 0, 0, NULL, "input-views",
     "frames to reconstruct from: two or more, in the order of the path"},
    {"targets", OPTION_STRING, FIELD(targets), "", 0, 0, NULL, "targets",
     "frames whose cameras are rendered; empty: a path through the input views"},
    {"frames", OPTION_INT, FIELD(frames), "30", 2, 100000, NULL, "frames", "views of the path"},
    {"fps", OPTION_FLOAT, FIELD(fps), "15", 0.01, 1000, NULL, "fps",
     "pictures a second of the animation"},
    {"error_full", OPTION_FLOAT, FIELD(error_full), "0.25", 1e-6, 1, NULL, "error-full",
     "error that is white in a comparison, as a share of the range"},
    {"output", OPTION_STRING, FIELD(output), "render", 0, 0, NULL, "output", "folder to write to"},
    {"overwrite", OPTION_BOOL, FIELD(overwrite), "false", 0, 0, NULL, "overwrite",
     "write into a folder that is not empty"},
    {0},
};

static const Section *sections(int *count) {
    static Section list[2];
    list[0] = (Section){"nvs_render", render_options, &options};
    list[1] = section_of("nvs_model");
    *count = 2;
    return list;
}

static const Section *hidden(int *count) {
    static Section list[3];
    *count = sections_fill(list, 3, "scenes nvs_train run");
    return list;
}

/* ---- what is asked for ---- */

static Status parse_frames(const char *flag, const char *text, const Scene *scene,
                           int64_t out[VIEW_MAX], int64_t *count) {
    *count = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        const long long frame = strtoll(at, &end, 10);
        if (end == at || errno || (*end && *end != ',') || *count == VIEW_MAX)
            return status_set(STATUS_USAGE, "%s '%s': at most %d frame numbers with commas between",
                              flag, text, (int)VIEW_MAX);
        if (frame < 0 || frame >= scene->count)
            return status_set(STATUS_USAGE, "%s: scene %s has the frames 0 to %lld, not %lld", flag,
                              scene->name, (long long)scene->count - 1, frame);
        out[(*count)++] = frame;
        if (!*end) return STATUS_OK;
        at = end;
    }
}

static Status find_scene(NvsRender *r) {
    char reason[512];
    r->scene = -1;
    if (options.scene[0]) {
        r->scene = scene_set_find(r->set, options.scene);
        if (r->scene < 0)
            return status_set(STATUS_USAGE, "--scene %s is not in %s", options.scene, options.root);
    }
    for (int64_t i = 0; r->scene < 0 && i < scene_set_count(r->set); i++)
        if (scene_usable(scene_set_at(r->set, i))) r->scene = i;
    if (r->scene < 0) return status_set(STATUS_DATA, "%s: no scene is usable", options.root);
    const Scene *scene = scene_set_at(r->set, r->scene);
    if (scene_usable(scene)) return STATUS_OK;
    return status_set(STATUS_DATA, "scene %s is not usable: %s", scene->name,
                      scene_reason(scene, reason, sizeof reason));
}

static Status find_views(NvsRender *r) {
    const Scene *scene = scene_set_at(r->set, r->scene);
    void *block;
    TRY(parse_frames("--input-views", options.inputs, scene, r->input_frames, &r->inputs));
    if (r->inputs < 2)
        return status_set(STATUS_USAGE, "--input-views: two frames or more are needed");
    r->count = options.frames;
    if (!options.targets[0]) return STATUS_OK;
    TRY(mem_alloc(&block, VIEW_MAX, sizeof(int64_t), "frame numbers"));
    r->frames = block;
    return parse_frames("--targets", options.targets, scene, r->frames, &r->count);
}

static Status make_folder(void) {
    DIR *folder = opendir(options.output);
    bool empty = true;
    if (folder == NULL && errno != ENOENT) return status_errno("cannot open %s", options.output);
    for (struct dirent *e; folder && empty && (e = readdir(folder)) != NULL;)
        empty = e->d_name[0] == '.';
    if (folder) closedir(folder);
    if (!empty && !options.overwrite)
        return status_set(STATUS_USAGE, "%s is not empty; --overwrite writes into it",
                          options.output);
    return file_make_folder(options.output);
}

/* ---- what is written ---- */

static Image view_at(const NvsRender *r, int64_t i) {
    const int64_t size = r->view.width * r->view.height * 3;
    return (Image){r->rendered + i * size, r->view.width, r->view.height};
}

static Status write_png(const char *name, const Image *image) {
    char *path;
    TRY(path_join(&path, options.output, name));
    Status s = image_write_png(path, image);
    mem_free(path);
    return s;
}

static Status write_frames(const NvsRender *r) {
    char name[48];
    for (int64_t i = 0; i < r->count; i++) {
        const Image image = view_at(r, i);
        snprintf(name, sizeof name, "frame-%05lld.png", (long long)i);
        TRY(write_png(name, &image));
    }
    return STATUS_OK;
}

enum { SHEET_VIEWS = 64 };

/* Of a long path, views at even distances. */
static Status write_sheet(const NvsRender *r) {
    Image views[SHEET_VIEWS], sheet;
    const int64_t shown = r->count < SHEET_VIEWS ? r->count : SHEET_VIEWS;
    const SheetOptions o = sheet_options_default();
    for (int64_t i = 0; i < shown; i++) views[i] = view_at(r, i * r->count / shown);
    TRY(contact_sheet(views, NULL, shown, &o, &sheet));
    Status s = write_png("sheet.png", &sheet);
    image_free(&sheet);
    return s;
}

static Status write_animation(const NvsRender *r) {
    const ApngOptions o = {r->view.width, r->view.height, r->count, options.fps, 0};
    ApngWriter *w;
    char *path;
    TRY(path_join(&path, options.output, "render.apng"));
    Status s = apng_open(path, &o, &w);
    mem_free(path);
    TRY(s);
    for (int64_t i = 0; i < r->count; i++) {
        const Image image = view_at(r, i);
        s = apng_frame(w, &image);
        if (s == STATUS_OK) continue;
        apng_abort(w);
        return s;
    }
    return apng_commit(w);
}

/* Truth, render and error of one frame; its PSNR. */
static Status compare_frame(const Image *truth, const Image *render, int64_t frame, Score *score) {
    const SheetOptions sheet = sheet_options_default();
    const ScoreOptions scoring = {.ssim = true};
    Picture a = picture_of_image(truth, "truth"), b = picture_of_image(render, "render");
    char name[48];
    Image image;
    TRY(score_pictures(&a, &b, &scoring, score));
    TRY(compare_sheet(truth, render, options.error_full, &sheet, &image));
    snprintf(name, sizeof name, "compare-%05lld.png", (long long)frame);
    Status s = write_png(name, &image);
    image_free(&image);
    return s;
}

static Status compare_frames(NvsRender *r, uint8_t *pixels, Score *scores, int64_t *count) {
    const Scene *scene = scene_set_at(r->set, r->scene);
    for (int64_t i = 0; i < r->count; i++) {
        const int64_t frame = r->frames[i];
        const Image truth = {pixels, r->view.width, r->view.height}, render = view_at(r, i);
        ViewCamera camera;
        if (scene->frames[frame].image < 0) {
            note("frame %lld has no picture to compare with", (long long)frame);
            continue;
        }
        TRY(view_load(r->set, r->scene, frame, &r->view, &r->scratch, pixels, &camera, NULL));
        TRY(compare_frame(&truth, &render, frame, &scores[*count]));
        if (!common.json)
            out_printf("frame %lld: psnr %.6f dB  ssim %.6f\n", (long long)frame,
                       scores[*count].psnr, scores[*count].ssim);
        ++*count;
    }
    return STATUS_OK;
}

static Status compare_all(NvsRender *r, ScoreSummary *sum) {
    void *pixels, *scores = NULL;
    int64_t count = 0;
    TRY(mem_alloc(&pixels, r->view.width * r->view.height, 3, "a view"));
    Status s = mem_alloc(&scores, r->count, sizeof(Score), "scores");
    if (s == STATUS_OK) s = compare_frames(r, pixels, scores, &count);
    if (s == STATUS_OK) s = score_summarise(scores, count, sum);
    mem_free(scores);
    mem_free(pixels);
    return s;
}

static Status print_json(const NvsRender *r, const ScoreSummary *sum) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "folder", options.output);
    json_pair_string(&w, "scene", scene_set_at(r->set, r->scene)->name);
    json_pair_int(&w, "views", r->count);
    json_pair_int(&w, "compared", sum->n);
    if (sum->n > 0) {
        json_pair_number(&w, "psnr", sum->psnr_mean);
        json_pair_number(&w, "ssim", sum->ssim_mean);
    }
    json_end_object(&w);
    Status s = w.status;
    if (s == STATUS_OK) out_printf("%s\n", w.text);
    json_writer_free(&w);
    return s;
}

static Status write_all(NvsRender *r) {
    ScoreSummary sum = {0};
    TRY(make_folder());
    TRY(write_frames(r));
    TRY(write_sheet(r));
    TRY(write_animation(r));
    if (r->frames) TRY(compare_all(r, &sum));
    if (common.json) return print_json(r, &sum);
    out_printf("%lld views of scene %s in ", (long long)r->count,
               scene_set_at(r->set, r->scene)->name);
    out_path(options.output);
    if (sum.n > 0) out_printf("; psnr %.6f dB over %lld", sum.psnr_mean, (long long)sum.n);
    out_text("\n");
    return STATUS_OK;
}

static Status render(NvsRender *r, const Config *config) {
    if (!options.checkpoint[0] || !options.root[0])
        return status_set(STATUS_USAGE, "--checkpoint and --data-dir are needed");
    TRY(scene_set_open(options.root, options.split, &r->set));
    TRY(find_scene(r));
    TRY(find_views(r));
    TRY(nvs_model_open(&r->model, options.checkpoint, (WeightsChoice)options.weights, config));
    TRY(nvs_render_run(r));
    return write_all(r);
}

static int run(Config *config, int argc, char **argv) {
    if (argc > 0) return cli_usage(&command_nvs_render, "unexpected argument '%s'", argv[0]);
    NvsRender r = {0};
    Status s = render(&r, config);
    const int code = s == STATUS_OK ? 0 : cli_fail(s);
    nvs_render_free(&r);
    return code;
}

const Command command_nvs_render = {
    .name = "nvs render",
    .summary = "render new views of a scene from two or more of its frames",
    .synopsis = "ttv nvs render --checkpoint RUN --data-dir SCENES --input-views A,B [flags]",
    .examples = "  ttv nvs render --checkpoint runs/re10k --data-dir re10k --input-views 0,60\n"
                "  ttv nvs render --checkpoint runs/re10k --data-dir re10k --input-views 0,60 "
                "--targets 10,20,30\n",
    .letters = "o=output",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
