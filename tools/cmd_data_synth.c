/* `ttv data synth-scenes OUT`: procedural rooms in RealEstate10K's layout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/synth.h"
#include "tools/cli.h"
#include "tools/parallel.h"

typedef struct SynthOptions {
    int64_t scenes, first, frames, samples, seed, workers;
    char size[CONFIG_TEXT], split[CONFIG_TEXT];
    bool overwrite;
} SynthOptions;

static SynthOptions options;

#define FIELD(name) offsetof(SynthOptions, name)
static const Option synth_options[] = {
    {"scenes", OPTION_INT, FIELD(scenes), "10", 1, 1e6, NULL, "scenes", "how many scenes"},
    {"first", OPTION_INT, FIELD(first), "0", 0, 1e9, NULL, "first",
     "number of the first scene: a set can be made in parts"},
    {"frames", OPTION_INT, FIELD(frames), "30", 2, 100000, NULL, "frames",
     "frames of each scene's path"},
    {"size", OPTION_STRING, FIELD(size), "228x128", 0, 0, NULL, "size",
     "WIDTHxHEIGHT of the frames, pixels"},
    {"samples", OPTION_INT, FIELD(samples), "2", 1, 16, NULL, "samples",
     "rays a pixel, in each direction"},
    {"seed", OPTION_INT, FIELD(seed), "0", 0, 9.0e15, NULL, "seed",
     "the same seed gives the same scenes; take another one for each split"},
    {"split", OPTION_STRING, FIELD(split), "train", 0, 0, NULL, "split",
     "name of the split's folder"},
    {"workers", OPTION_INT, FIELD(workers), "0", 0, 256, NULL, "workers",
     "threads; 0: one per processor; results do not depend on it"},
    {"overwrite", OPTION_BOOL, FIELD(overwrite), "false", 0, 0, NULL, "overwrite",
     "write into a folder that is not empty"},
    {0},
};

static const Section *sections(int *count) {
    static const Section list[] = {{"synth", synth_options, &options}};
    *count = 1;
    return list;
}

typedef struct SynthRun {
    char *folder; /* OUT/<split> */
    int64_t width, height;
} SynthRun;

/* ---- one scene ---- */

static Status write_frame(const SynthScene *s, const char *folder, const SceneFrame *camera,
                          Image *image) {
    char *path, name[40];
    synth_render(s, camera, image->width, image->height, (int)options.samples, image->pixels);
    snprintf(name, sizeof name, "%lld.png", (long long)camera->time);
    TRY(path_join(&path, folder, name));
    Status status = image_write_png(path, image);
    mem_free(path);
    return status;
}

/* A line of the camera text, RealEstate10K's 19 columns; returns its length. */
static int camera_line(const SceneFrame *f, char *text, size_t size) {
    int n = snprintf(text, size, "%lld %.9f %.9f %.9f %.9f 0 0", (long long)f->time, f->fx, f->fy,
                     f->cx, f->cy);
    for (int i = 0; i < 12; i++) n += snprintf(text + n, size - (size_t)n, " %.9f", f->w2c[i]);
    n += snprintf(text + n, size - (size_t)n, "\n");
    return n;
}

enum { LINE_BYTES = 512 };

/* Frames first, then the text: a scene that was broken off has no cameras and is no scene. */
static Status write_frames(const SynthRun *r, const SynthScene *s, const char *folder, char *text,
                           size_t size) {
    void *pixels;
    size_t used = strlen(text);
    double aspect = (double)r->width / (double)r->height;
    TRY(mem_alloc(&pixels, r->width * r->height, 3, "frame"));
    Image image = {pixels, r->width, r->height};
    Status status = STATUS_OK;
    for (int64_t k = 0; status == STATUS_OK && k < options.frames; k++) {
        SceneFrame camera = synth_camera(s, k, options.frames, aspect);
        status = write_frame(s, folder, &camera, &image);
        used += (size_t)camera_line(&camera, text + used, size - used);
    }
    mem_free(pixels);
    return status;
}

static Status write_scene(const SynthRun *r, const SynthScene *s, const char *folder,
                          int64_t number) {
    void *text, *path;
    size_t size = (size_t)(options.frames + 1) * LINE_BYTES;
    TRY(file_make_folder(folder));
    TRY(mem_alloc(&text, (int64_t)size, 1, "camera text"));
    snprintf(text, size, "synthetic:ttv-synth-scenes/seed=%lld/scene=%lld\n",
             (long long)options.seed, (long long)number);
    Status status = write_frames(r, s, folder, text, size);
    if (status == STATUS_OK) status = mem_alloc(&path, (int64_t)strlen(folder) + 5, 1, "file name");
    if (status == STATUS_OK) {
        snprintf(path, strlen(folder) + 5, "%s.txt", folder);
        status = file_write_atomic(path, text, strlen(text));
        mem_free(path);
    }
    mem_free(text);
    return status;
}

static Status make_scene(void *user, int64_t i) {
    const SynthRun *r = user;
    char name[17], *folder;
    SynthScene *s;
    int64_t number = options.first + i;
    synth_scene_name((uint64_t)options.seed, number, name);
    TRY(path_join(&folder, r->folder, name));
    Status status = synth_scene_new((uint64_t)options.seed, number, &s);
    if (status == STATUS_OK) {
        status = write_scene(r, s, folder, number);
        synth_scene_free(s);
    }
    mem_free(folder);
    return status;
}

static void show_progress(void *user, int64_t done) {
    (void)user;
    progress_line(10, "%lld of %lld scenes", (long long)done, (long long)options.scenes);
}

/* ---- the folder ---- */

static const char readme[] =
    "# Synthetic scenes\n\n"
    "Made by `ttv data synth-scenes`: procedural rooms, ray-cast. NOT photographs; any model\n"
    "trained on them should say so.\n\n"
    "RealEstate10K's layout: <split>/<scene>.txt (line 1 says synthetic, seed and scene; then\n"
    "timestamp, fx fy cx cy over width and height, 0 0, 3x4 world-to-camera matrix; OpenCV axes)\n"
    "and <split>/<scene>/<timestamp>.png. Lengths are metres. The cameras are exact.\n\n";

static Status write_readme(const char *out) {
    char *path, text[sizeof readme + 400];
    snprintf(text, sizeof text,
             "%sLast call: split '%.100s', seed %lld, scenes %lld to %lld, %lld frames of %.40s\n",
             readme, options.split, (long long)options.seed, (long long)options.first,
             (long long)(options.first + options.scenes - 1), (long long)options.frames,
             options.size);
    TRY(path_join(&path, out, "README.md"));
    Status s = file_write_atomic(path, text, strlen(text));
    mem_free(path);
    return s;
}

static Status parse_size(SynthRun *r) {
    char rest;
    long long w, h;
    if (sscanf(options.size, "%lldx%lld%c", &w, &h, &rest) != 2 || w < 8 || h < 8 || w > 8192 ||
        h > 8192)
        return status_set(STATUS_USAGE,
                          "--size '%s': WIDTHxHEIGHT is expected, sides of 8 to 8192 pixels",
                          options.size);
    r->width = w;
    r->height = h;
    return STATUS_OK;
}

static bool is_plain_name(const char *name) {
    return *name != '\0' && *name != '.' && strpbrk(name, "/\\,") == NULL;
}

static Status make(const char *out, SynthRun *r) {
    TRY(parse_size(r));
    if (!is_plain_name(options.split))
        return status_set(STATUS_USAGE, "--split '%s': a folder's name is expected", options.split);
    if (!options.overwrite) TRY(out_folder_check(out, "--overwrite writes into it"));
    TRY(path_join(&r->folder, out, options.split));
    TRY(file_make_folder(r->folder));
    TRY(write_readme(out));
    return parallel_for(options.scenes, (int)options.workers, make_scene, show_progress, r);
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    SynthRun r = {0};
    if (argc != 1)
        return cli_usage(&command_data_synth, "one folder to write to is expected, %d are given",
                         argc);
    Status s = make(argv[0], &r);
    progress_end();
    mem_free(r.folder);
    if (s != STATUS_OK) return cli_fail(s);
    if (common.json) {
        JsonWriter w;
        json_writer_init(&w);
        json_begin_object(&w);
        json_pair_string(&w, "folder", argv[0]);
        json_pair_bool(&w, "synthetic", true);
        json_pair_string(&w, "split", options.split);
        json_pair_int(&w, "scenes", options.scenes);
        json_pair_int(&w, "frames", options.scenes * options.frames);
        json_end_object(&w);
        s = out_json(&w, STATUS_OK);
        return s == STATUS_OK ? 0 : cli_fail(s);
    }
    out_printf("%lld synthetic scenes of %lld frames (%lldx%lld) in ", (long long)options.scenes,
               (long long)options.frames, (long long)r.width, (long long)r.height);
    out_path(argv[0]);
    out_printf("\n");
    return 0;
}

const Command command_data_synth = {
    .name = "data synth-scenes",
    .summary = "make procedural scenes with exact cameras (synthetic training material)",
    .synopsis = "ttv data synth-scenes [flags] OUT",
    .examples =
        "  ttv data synth-scenes /data/rooms --scenes 200 --frames 30\n"
        "  ttv data synth-scenes /data/rooms --split test --seed 1 --scenes 20 --overwrite\n",
    .letters = "j=workers",
    .sections = sections,
    .run = run,
};
