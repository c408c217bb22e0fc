/* ttv doctor: what of this machine the program can use, and what stands in its way. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "kernels/comm.h"
#include "kernels/device.h"
#include "tools/cli.h"
#include "tools/movie.h"

typedef struct DoctorOptions {
    char folder[CONFIG_TEXT];
} DoctorOptions;

static DoctorOptions options;

static const Option doctor_options[] = {
    {"output", OPTION_STRING, offsetof(DoctorOptions, folder), ".", 0, 0, NULL, "output",
     "folder that runs shall be written to"},
    {0},
};

static const Section *sections(int *count) {
    static Section list[1];
    list[0] = (Section){"doctor", doctor_options, &options};
    *count = 1;
    return list;
}

/* ---- findings: a name, its verdict, a text ---- */

typedef enum Verdict { GOOD, MISSING, BAD } Verdict;
static const char *const verdict_names[] = {"ok", "missing", "fault"};

enum { FINDINGS = 16, TEXT = 700 };
typedef struct Finding {
    const char *name;
    Verdict verdict;
    char text[TEXT];
} Finding;

typedef struct Report {
    Finding items[FINDINGS];
    int count;
} Report;

static void add(Report *r, const char *name, Verdict verdict, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void add(Report *r, const char *name, Verdict verdict, const char *format, ...) {
    if (r->count == FINDINGS) return;
    Finding *f = &r->items[r->count++];
    *f = (Finding){.name = name, .verdict = verdict};
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
}

/* ---- what is looked at ---- */

/* A device that opens; for a card that nobody asked for, none is no fault. */
static void look_at_device(Report *r, const char *name, const char *spec, Verdict otherwise) {
    Device *d;
    size_t available = 0, total = 0;
    const Status s = device_open(spec, &d);
    if (s != STATUS_OK) {
        add(r, name, otherwise, "%s", status_message());
        return;
    }
    if (device_memory(d, &available, &total) == STATUS_OK)
        add(r, name, GOOD, "%s, %.1f of %.1f GB free", d->name, (double)available / 1e9,
            (double)total / 1e9);
    else
        add(r, name, BAD, "%s: %s", d->name, status_message());
    device_close(d);
}

static void look_at_processor(Report *r) {
    if (device_check_cpu() != STATUS_OK) {
        add(r, "processor", BAD, "%s", status_message());
        return;
    }
    add(r, "processor", GOOD, "%ld of them, with every instruction of this build",
        sysconf(_SC_NPROCESSORS_ONLN));
}

static void look_at_folder(Report *r) {
    struct statvfs fs;
    if (statvfs(options.folder, &fs) != 0) {
        status_errno("%s", options.folder);
        add(r, "folder", BAD, "%s", status_message());
        return;
    }
    const double free_gb = (double)fs.f_bavail * (double)fs.f_frsize / 1e9;
    if (access(options.folder, W_OK) != 0)
        add(r, "folder", BAD, "%s cannot be written to", options.folder);
    else
        add(r, "folder", GOOD, "%s, %.1f GB free", options.folder, free_gb);
}

/* Each loading thread holds a file or two open, tar files stay mapped. */
static void look_at_limits(Report *r) {
    enum { FILES = 256 };
    struct rlimit files, space;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        add(r, "open files", files.rlim_cur < FILES ? BAD : GOOD, "%llu at a time%s",
            (unsigned long long)files.rlim_cur,
            files.rlim_cur < FILES ? ": few for many workers (ulimit -n)" : "");
    if (getrlimit(RLIMIT_FSIZE, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
        add(r, "file size", BAD, "limited to %.1f MB (ulimit -f): a checkpoint may not fit",
            (double)space.rlim_cur / 1e6);
}

static void look_at_ffmpeg(Report *r) {
    if (movie_check() == STATUS_OK)
        add(r, "ffmpeg", GOOD, "found, nvs render can write MP4");
    else
        add(r, "ffmpeg", MISSING, "%s", status_message());
}

static void look_at_ranks(Report *r) {
    char text[64];
    if (comm_library(text, sizeof text) == STATUS_OK)
        add(r, "ranks", GOOD, "%s joins several cards", text);
    else
        add(r, "ranks", MISSING, "on the CPU alone: %s", status_message());
}

/* ---- telling it ---- */

static void print_text(const Report *r) {
    help_version(false);
    for (int i = 0; i < r->count; i++) {
        char safe[4 * TEXT];
        const Finding *f = &r->items[i];
        out_printf("%-8s %-11s %s\n", verdict_names[f->verdict], f->name,
                   text_printable(f->text, safe, sizeof safe));
    }
}

static Status print_json(const Report *r) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    for (int i = 0; i < r->count; i++) {
        json_key(&w, r->items[i].name);
        json_begin_object(&w);
        json_pair_string(&w, "verdict", verdict_names[r->items[i].verdict]);
        json_pair_string(&w, "text", r->items[i].text);
        json_end_object(&w);
    }
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    Report r = {0};
    if (argc > 0) return cli_usage(&command_doctor, "unexpected argument '%s'", argv[0]);
    const bool named = strcmp(common.device, "cpu") != 0;
    look_at_processor(&r);
    look_at_device(&r, "memory", "cpu", BAD);
    look_at_device(&r, "card", named ? common.device : "cuda", named ? BAD : MISSING);
    look_at_ranks(&r);
    look_at_folder(&r);
    look_at_limits(&r);
    look_at_ffmpeg(&r);
    if (common.json) {
        const Status s = print_json(&r);
        if (s != STATUS_OK) return cli_fail(s);
    } else {
        print_text(&r);
    }
    for (int i = 0; i < r.count; i++)
        if (r.items[i].verdict == BAD) return EXIT_NEGATIVE;
    return 0;
}

const Command command_doctor = {
    .name = "doctor",
    .summary = "what of this machine can be used, and what stands in the way",
    .synopsis = "ttv doctor [--output FOLDER] [--device cuda:N]",
    .examples = "  ttv doctor\n"
                "  ttv doctor --device cuda:1 --output /data/runs --json\n",
    .letters = "o=output",
    .sections = sections,
    .run = run,
};
