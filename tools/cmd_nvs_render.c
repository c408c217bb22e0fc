/* ttv nvs render: new views of a scene, on a path or at given cameras. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/movie.h"
#include "tools/nvs_options.h"
#include "tools/nvs_render_output.h"
#include "tools/ranks.h"
#include "tools/sections.h"

typedef struct RenderOptions {
    NvsInput input;
    char scene[CONFIG_TEXT], inputs[CONFIG_TEXT], targets[CONFIG_TEXT], cameras[CONFIG_TEXT],
        output[CONFIG_TEXT];
    char save_scene[CONFIG_TEXT], load_scene[CONFIG_TEXT], format[CONFIG_TEXT];
    int trajectory; /* PathKind */
    int64_t frames, rounds;
    double turn, path_size, fps, error_full;
    bool loop, html, overwrite;
} RenderOptions;

static RenderOptions options;

#define FIELD(name) offsetof(RenderOptions, name)
static const Option render_options[] = {
    NVS_INPUT_OPTIONS(RenderOptions, ""),
    {"scene", OPTION_STRING, FIELD(scene), "", 0, 0, NULL, "scene",
     "name of the scene; empty: the first that is usable"},
    {"inputs", OPTION_STRING, FIELD(inputs), "0,1", 0, 0, NULL, "input-views",
     "frames to reconstruct from: two or more, in the order of the path"},
    {"targets", OPTION_STRING, FIELD(targets), "", 0, 0, NULL, "targets",
     "frames whose cameras are rendered; empty: a path through the input views"},
    {"cameras", OPTION_STRING, FIELD(cameras), "", 0, 0, NULL, "cameras",
     "file of cameras to render: RealEstate10K lines, or JSON as opencv_cameras.json"},
    {"trajectory", OPTION_CHOICE, FIELD(trajectory), "interpolate", 0, 0,
     "interpolate|spiral|orbit", "trajectory",
     "path through the input views, in rounds about their middle, or about what they look at"},
    {"frames", OPTION_INT, FIELD(frames), "30", 2, 100000, NULL, "frames", "views of the path"},
    {"loop", OPTION_BOOL, FIELD(loop), "false", 0, 0, NULL, "loop",
     "interpolate on from the last input view to the first (spirals and orbits close anyway)"},
    {"path_size", OPTION_FLOAT, FIELD(path_size), "1", 1e-3, 1e3, NULL, "path-size",
     "factor on the size of a spiral or orbit, which is that of the input views' spread"},
    {"rounds", OPTION_INT, FIELD(rounds), "2", 1, 1000, NULL, "rounds", "rounds of a spiral"},
    {"turn", OPTION_FLOAT, FIELD(turn), "0", 0, 360, NULL, "turn",
     "degrees of an orbit from end to end; 360: a turntable; 0: as the input views stand apart"},
    {"format", OPTION_STRING, FIELD(format), "apng", 0, 0, NULL, "format",
     "animations, with commas between: apng, gif (256 colours), mp4 (needs ffmpeg), y4m (not "
     "compressed), or none (png: the same, frames always are)"},
    {"fps", OPTION_FLOAT, FIELD(fps), "15", 0.01, 1000, NULL, "fps",
     "pictures a second of the animation"},
    {"html", OPTION_BOOL, FIELD(html), "false", 0, 0, NULL, "html",
     "also page.html, which holds all pictures and scores in one file"},
    {"save_scene", OPTION_STRING, FIELD(save_scene), "", 0, 0, NULL, "save-scene",
     "write the reconstructed scene (fast weights) here, for --load-scene"},
    {"load_scene", OPTION_STRING, FIELD(load_scene), "", 0, 0, NULL, "load-scene",
     "render a scene that --save-scene wrote: no input views are read"},
    {"error_full", OPTION_FLOAT, FIELD(error_full), "0.25", 1e-6, 1, NULL, "error-full",
     "error that is white in a comparison, as a share of the range"},
    {"output", OPTION_STRING, FIELD(output), "render", 0, 0, NULL, "output", "folder to write to"},
    {"overwrite", OPTION_BOOL, FIELD(overwrite), "false", 0, 0, NULL, "overwrite",
     "write into a folder that is not empty"},
    {0},
};

static const Section *sections(int *count) {
    static Section list[3];
    list[0] = (Section){"nvs_render", render_options, &options};
    list[1] = section_of("nvs_model");
    list[2] = section_of("dist");
    *count = 3;
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

static Status find_scene(NvsRender *r, const char *name) {
    char reason[512];
    r->scene = -1;
    if (name[0]) {
        r->scene = scene_set_find(r->set, name);
        if (r->scene < 0)
            return status_set(STATUS_USAGE, "--scene %s is not in %s", name, options.input.root);
    }
    for (int64_t i = 0; r->scene < 0 && i < scene_set_count(r->set); i++)
        if (scene_usable(scene_set_at(r->set, i))) r->scene = i;
    if (r->scene < 0) return status_set(STATUS_DATA, "%s: no scene is usable", options.input.root);
    const Scene *scene = scene_set_at(r->set, r->scene);
    if (scene_usable(scene)) return STATUS_OK;
    return status_set(STATUS_DATA, "scene %s is not usable: %s", scene->name,
                      scene_reason(scene, reason, sizeof reason));
}

static Status find_inputs(NvsRender *r) {
    const Scene *scene = scene_set_at(r->set, r->scene);
    TRY(parse_frames("--input-views", options.inputs, scene, r->input_frames, &r->inputs));
    if (r->inputs < 2)
        return status_set(STATUS_USAGE, "--input-views: two frames or more are needed");
    snprintf(r->name, sizeof r->name, "%s", scene->name);
    return STATUS_OK;
}

static Status find_views(NvsRender *r) {
    void *block;
    r->count = options.frames;
    r->path = (PathOptions){.kind = (PathKind)options.trajectory,
                            .size = options.path_size,
                            .turn = options.turn,
                            .rounds = options.rounds,
                            .loop = options.loop};
    if (options.cameras[0]) return scene_cameras_read(options.cameras, &r->listed, &r->count);
    if (!options.targets[0]) return STATUS_OK;
    TRY(mem_alloc(&block, VIEW_MAX, sizeof(int64_t), "frame numbers"));
    r->frames = block;
    return parse_frames("--targets", options.targets, scene_set_at(r->set, r->scene), r->frames,
                        &r->count);
}

/* A scene's pictures are needed for input views and for --targets. */
static Status check_usage(const Config *config) {
    const bool loaded = options.load_scene[0] != 0;
    if (!options.input.checkpoint[0] || (!options.input.root[0] && !loaded))
        return status_set(STATUS_USAGE, "--checkpoint and --data-dir are needed");
    if (options.targets[0] && options.cameras[0])
        return status_set(STATUS_USAGE, "--targets and --cameras: only one of them");
    if (loaded && options.targets[0] && !options.input.root[0])
        return status_set(STATUS_USAGE, "--targets with --load-scene needs --data-dir");
    if (loaded && config_is_set(config, "nvs_render", "inputs"))
        return status_set(STATUS_USAGE, "--load-scene takes the place of --input-views");
    if (loaded && options.save_scene[0])
        return status_set(STATUS_USAGE, "--load-scene and --save-scene: only one of them");
    return STATUS_OK;
}

static Status parse_formats(RenderOutput *out) {
    bool none;
    const struct {
        const char *name;
        bool *wanted;
    } formats[] = {{"apng", &out->apng}, {"gif", &out->gif}, {"mp4", &out->mp4},
                   {"y4m", &out->y4m},   {"png", &none}, /* frames always are */
                   {"none", &none}};
    for (const char *at = options.format;; at++) {
        const size_t n = strcspn(at, ","), count = sizeof formats / sizeof *formats;
        size_t k = 0;
        while (k < count && (strlen(formats[k].name) != n || strncmp(at, formats[k].name, n) != 0))
            k++;
        if (k == count)
            return status_set(STATUS_USAGE,
                              "--format: '%.*s' is none of apng, gif, mp4, y4m, png, none", (int)n,
                              at);
        *formats[k].wanted = true;
        at += n;
        if (!*at) return out->mp4 ? movie_check() : STATUS_OK;
    }
}

/* ---- what is written ---- */

static Status print_json(const NvsRender *r, const ScoreSummary *sum) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "folder", options.output);
    json_pair_string(&w, "scene", r->name);
    json_pair_int(&w, "views", r->count);
    json_pair_int(&w, "compared", sum->n);
    if (sum->n > 0) {
        json_pair_number(&w, "psnr", sum->psnr_mean);
        json_pair_number(&w, "ssim", sum->ssim_mean);
    }
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static Status print_result(const NvsRender *r, const ScoreSummary *sum) {
    if (common.json) return print_json(r, sum);
    out_printf("%lld views of scene %s in ", (long long)r->count, r->name);
    out_path(options.output);
    if (sum->n > 0) out_printf("; psnr %.6f dB over %lld", sum->psnr_mean, (long long)sum->n);
    out_text("\n");
    return STATUS_OK;
}

static Status write_all(NvsRender *r, const RenderOutput *output) {
    RenderScores scores = {.count = 0};
    if (options.save_scene[0]) TRY(nvs_scene_save(r, options.save_scene));
    TRY(file_make_folder(options.output));
    Status s = render_write(r, output, &scores);
    if (s == STATUS_OK) s = print_result(r, &scores.summary);
    render_scores_free(&scores);
    return s;
}

static Status open_scene(NvsRender *r, const char *name) {
    if (!options.input.root[0]) return STATUS_OK;
    TRY(scene_set_open(options.input.root, options.input.split, &r->set));
    return find_scene(r, name);
}

static Status open_model(NvsRender *r, const Config *config) {
    return nvs_model_open(&r->model, options.input.checkpoint, (WeightsChoice)options.input.weights,
                          config);
}

/* A saved scene's pictures, when they are at hand, are those of the scene of its name. */
static Status load_scene(NvsRender *r, const Config *config) {
    TRY(open_model(r, config));
    TRY(nvs_scene_load(r, options.load_scene));
    TRY(open_scene(r, options.scene[0] ? options.scene : r->name));
    return find_views(r);
}

static Status find_scene_and_views(NvsRender *r, const Config *config) {
    TRY(open_scene(r, options.scene));
    TRY(find_inputs(r));
    TRY(find_views(r));
    return open_model(r, config);
}

static Status open_all(NvsRender *r, const Config *config, RenderOutput *output) {
    TRY(check_usage(config));
    TRY(parse_formats(output));
    if (!options.overwrite) TRY(out_folder_check(options.output, "--overwrite writes into it"));
    return options.load_scene[0] ? load_scene(r, config) : find_scene_and_views(r, config);
}

/* What rank 0 has to write takes long: the others leave it alone with that. */
static Status render(NvsRender *r, const Config *config) {
    RenderOutput output = {.folder = options.output,
                           .fps = options.fps,
                           .error_full = options.error_full,
                           .html = options.html};
    TRY(ranks_agree_all(open_all(r, config, &output)));
    TRY(ranks_check_cards(r->model.device));
    TRY(ranks_agree_all(nvs_render_run(r)));
    return output_is_mine() ? write_all(r, &output) : STATUS_OK;
}

static int run(Config *config, int argc, char **argv) {
    if (argc > 0) return cli_usage(&command_nvs_render, "unexpected argument '%s'", argv[0]);
    NvsRender r = {0};
    int code;
    if (ranks_launch(&code)) return code;
    Status s = ranks_join();
    if (s == STATUS_OK) s = render(&r, config);
    code = s == STATUS_OK ? 0 : cli_fail(s);
    nvs_render_free(&r);
    ranks_leave(s == STATUS_OK);
    return code;
}

const Command command_nvs_render = {
    .name = "nvs render",
    .aliases = "render",
    .summary = "render new views of a scene from two or more of its frames",
    .synopsis = "ttv nvs render --checkpoint RUN --data-dir SCENES --input-views A,B [flags]",
    .examples = "  ttv nvs render --checkpoint runs/re10k --data-dir re10k --input-views 0,60\n"
                "  ttv nvs render --checkpoint runs/re10k --data-dir re10k --input-views 0,60 "
                "--targets 10,20,30 --html\n"
                "  ttv nvs render --checkpoint runs/re10k --data-dir re10k --input-views 0,60 "
                "--trajectory spiral --format gif,mp4\n"
                "  ttv nvs render --checkpoint runs/re10k --load-scene room.safetensors "
                "--cameras path.txt\n",
    .letters = "o=output",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
