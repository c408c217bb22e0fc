/* stdout and stderr of the program, and the library's log sink. */
#include "tools/cli.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"

static int output_errno; /* first failure of a write to stdout; 0: none */
static FILE *tee_file;
static int own_rank;
static bool hushed;
static bool json_asked; /* before the options were read */
/* Loader threads log too; a line must not be torn. */
static pthread_mutex_t message_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- stdout ---- */

static void output_check(bool ok) {
    if (!ok && output_errno == 0) output_errno = errno ? errno : EIO;
}

void output_rank(int rank) {
    own_rank = rank;
}

void output_hush(void) {
    hushed = true;
}

bool output_is_mine(void) {
    return own_rank == 0;
}

void out_printf(const char *format, ...) {
    if (output_errno || own_rank > 0) return;
    va_list args;
    va_start(args, format);
    output_check(vprintf(format, args) >= 0);
    va_end(args);
}

void out_bytes(const void *data, size_t size) {
    if (output_errno || own_rank > 0) return;
    output_check(fwrite(data, 1, size, stdout) == size);
}

void out_text(const char *text) {
    out_bytes(text, strlen(text));
}

Status out_json(JsonWriter *w, Status s) {
    if (s == STATUS_OK) s = w->status;
    if (s == STATUS_OK) {
        out_text(w->text);
        out_text("\n");
    }
    json_writer_free(w);
    return s;
}

void out_path(const char *path) {
    if (!isatty(STDOUT_FILENO)) {
        out_text(path);
        return;
    }
    size_t size = strlen(path) * 4 + 1;
    char *safe = mem_malloc(size);
    if (!safe) return;
    out_text(text_printable(path, safe, size));
    mem_free(safe);
}

Status out_folder_check(const char *path, const char *advice) {
    char shown[600];
    DIR *folder = opendir(path);
    bool empty = true;
    text_printable(path, shown, sizeof shown);
    if (folder == NULL)
        return errno == ENOENT ? STATUS_OK : status_errno("cannot open %s as a folder", shown);
    for (struct dirent *e; empty && (e = readdir(folder)) != NULL;) empty = e->d_name[0] == '.';
    closedir(folder);
    if (empty) return STATUS_OK;
    return status_set(STATUS_USAGE, "%s is not empty; %s", shown, advice);
}

bool out_failed(void) {
    return output_errno != 0;
}

int out_finish(int code) {
    output_check(fflush(stdout) == 0);
    if (output_errno == 0) return code;
    if (output_errno == EPIPE) return 141;
    complain("cannot write to standard output: %s", strerror(output_errno));
    return 4;
}

/* ---- stderr ---- */

static bool color_on(void) {
    if (common.color != 0) return common.color == 1;
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if (no_color && *no_color) return false;
    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

/* ---- --log-format json ---- */

bool output_is_json(void) {
    return json_asked || common.log_format == LOG_FORMAT_JSON;
}

static void put_time(JsonWriter *w) {
    char day[32], text[48];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text, sizeof text, "%s.%03ldZ", day, now.tv_nsec / 1000000);
    json_pair_string(w, "time", text);
}

/* One object a line; exactly one of message and record (JSON already). False: no memory for it. */
static bool json_line(const char *level, const char *message, const char *record) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    put_time(&w);
    json_pair_string(&w, "level", level);
    if (own_rank > 0) json_pair_int(&w, "rank", own_rank);
    if (message) json_pair_string(&w, "message", message);
    const bool good = w.status == STATUS_OK;
    if (good && record)
        fprintf(stderr, "%s,\"record\":%s}\n", w.text, record);
    else if (good)
        fprintf(stderr, "%s}\n", w.text);
    json_writer_free(&w);
    return good;
}

void output_record(const char *record) {
    if (!output_is_json() || common.quiet || own_rank > 0) return;
    pthread_mutex_lock(&message_lock);
    json_line("record", NULL, record);
    fflush(stderr);
    pthread_mutex_unlock(&message_lock);
}

void output_progress(const char *text) {
    pthread_mutex_lock(&message_lock);
    if (!output_is_json() || !json_line("progress", text, NULL)) fprintf(stderr, "%s\n", text);
    pthread_mutex_unlock(&message_lock);
}

/* ---- lines ---- */

/* One line: "ttv: <word>: text", the word coloured on a terminal. `word` NULL: the text alone. */
static void message_line(const char *word, const char *color, const char *text) {
    char prefix[32] = "";
    if (hushed || (own_rank > 0 && !word)) return;
    if (own_rank > 0) snprintf(prefix, sizeof prefix, "[rank %d] ", own_rank);
    pthread_mutex_lock(&message_lock);
    progress_clear();
    if (output_is_json() && json_line(word ? word : "info", text, NULL))
        ; /* told */
    else if (!word)
        fprintf(stderr, "%s\n", text);
    else if (color_on())
        fprintf(stderr, "ttv: %s\033[%sm%s:\033[0m %s\n", prefix, color, word, text);
    else
        fprintf(stderr, "ttv: %s%s: %s\n", prefix, word, text);
    fflush(stderr);
    if (tee_file) {
        fprintf(tee_file, "%s%s%s\n", word ? word : "", word ? ": " : "", text);
        fflush(tee_file);
    }
    pthread_mutex_unlock(&message_lock);
}

static void tee_line(const char *text) {
    pthread_mutex_lock(&message_lock);
    if (tee_file) {
        fprintf(tee_file, "%s\n", text);
        fflush(tee_file);
    }
    pthread_mutex_unlock(&message_lock);
}

/* Messages hold file names, and those may hold terminal escapes. */
static void format_safe(char *safe, size_t size, const char *format, va_list args) {
    char raw[2048];
    vsnprintf(raw, sizeof raw, format, args);
    text_printable(raw, safe, size);
}

void note(const char *format, ...) {
    char text[8192];
    va_list args;
    va_start(args, format);
    format_safe(text, sizeof text, format, args);
    va_end(args);
    if (common.quiet)
        tee_line(text);
    else
        message_line(NULL, NULL, text);
}

void complain(const char *format, ...) {
    char text[8192];
    va_list args;
    va_start(args, format);
    format_safe(text, sizeof text, format, args);
    va_end(args);
    message_line("error", "1;31", text);
}

void output_tee(FILE *file) {
    pthread_mutex_lock(&message_lock);
    tee_file = file;
    pthread_mutex_unlock(&message_lock);
}

static void sink(void *user, LogLevel level, const char *message) {
    (void)user;
    char text[8192];
    text_printable(message, text, sizeof text);
    if (level == LOG_ERROR)
        message_line("error", "1;31", text);
    else if (level == LOG_WARN && !common.quiet)
        message_line("warning", "1;33", text);
    else if ((level == LOG_INFO && !common.quiet) || (level == LOG_DEBUG && common.verbose))
        message_line(NULL, NULL, text);
    else if (level != LOG_DEBUG)
        tee_line(text);
}

void output_start(bool json) {
    json_asked = json;
    /* Writes report EPIPE and EFBIG instead of killing a run. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    log_set_sink(sink, NULL);
}
