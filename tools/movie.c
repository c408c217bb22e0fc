#include "tools/movie.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "core/memory.h"

extern char **environ;

Status movie_check(void) {
    const char *path = getenv("PATH");
    char file[4096];
    for (const char *at = path ? path : ""; *at;) {
        const size_t n = strcspn(at, ":");
        snprintf(file, sizeof file, "%.*s/ffmpeg", (int)n, n > 0 ? at : ".");
        if (file_kind(file) && !file_is_folder(file) && access(file, X_OK) == 0) return STATUS_OK;
        at += n + (at[n] == ':');
    }
    return status_set(STATUS_IO, "MP4 needs the program ffmpeg, which is not in PATH: install it, "
                                 "or ask for apng or gif");
}

/* ffmpeg reads the pipe; what it complains about goes to `said`. */
typedef struct Movie {
    pid_t child;
    int pipe, said;
    const char *temporary,
        *target; /* the same file, as ffmpeg wants names that may hold anything */
} Movie;

static Status spawn(Movie *m, int input, char *const *arguments) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    if (posix_spawn_file_actions_init(&actions) != 0)
        return status_set(STATUS_MEMORY, "out of memory to start ffmpeg");
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, m->said, STDERR_FILENO);
    errno = posix_spawnp(&m->child, "ffmpeg", &actions, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return errno == 0 ? STATUS_OK : status_errno("cannot start ffmpeg");
}

static Status start(Movie *m, int64_t width, int64_t height, double fps) {
    char size[64], rate[64];
    int ends[2];
    snprintf(size, sizeof size, "%lldx%lld", (long long)width, (long long)height);
    snprintf(rate, sizeof rate, "%.6f", fps);
    const char *const arguments[] = {"ffmpeg",      "-nostdin", "-y",
                                     "-loglevel",   "error",    "-f",
                                     "rawvideo",    "-pix_fmt", "rgb24",
                                     "-video_size", size,       "-framerate",
                                     rate,          "-i",       "pipe:0",
                                     "-an",         "-vf",      "pad=ceil(iw/2)*2:ceil(ih/2)*2",
                                     "-pix_fmt",    "yuv420p",  "-movflags",
                                     "+faststart",  "-f",       "mp4",
                                     m->target,     NULL};
    char *copy[sizeof arguments / sizeof *arguments];
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++)
        copy[i] = (char *)(uintptr_t)arguments[i]; /* exec does not write to them */
    if (pipe2(ends, O_CLOEXEC) != 0) return status_errno("cannot make a pipe to ffmpeg");
    Status s = spawn(m, ends[0], copy);
    close(ends[0]);
    m->pipe = ends[1];
    return s;
}

/* False when ffmpeg stopped reading: it has said why. SIGPIPE is ignored by this program. */
static bool feed(int to, const uint8_t *bytes, int64_t size) {
    while (size > 0) {
        const ssize_t n = write(to, bytes, (size_t)size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes += n;
        size -= n;
    }
    return true;
}

/* The last line that ffmpeg complained with. */
static void last_words(int said, char *out, size_t size) {
    char text[2048];
    const off_t end = lseek(said, 0, SEEK_END);
    const off_t from = end > (off_t)sizeof text - 1 ? end - ((off_t)sizeof text - 1) : 0;
    const ssize_t n = pread(said, text, sizeof text - 1, from);
    text[n > 0 ? n : 0] = 0;
    for (size_t k = strlen(text); k > 0 && text[k - 1] == '\n'; k--) text[k - 1] = 0;
    const char *line = strrchr(text, '\n');
    text_printable(line ? line + 1 : text, out, size);
}

static Status finish(Movie *m, bool fed) {
    char words[400];
    int state = 0;
    if (m->pipe >= 0) close(m->pipe);
    m->pipe = -1;
    while (waitpid(m->child, &state, 0) < 0 && errno == EINTR) continue;
    if (fed && WIFEXITED(state) && WEXITSTATUS(state) == 0) return STATUS_OK;
    last_words(m->said, words, sizeof words);
    if (WIFSIGNALED(state))
        return status_set(STATUS_IO, "ffmpeg was ended by signal %d: %s", WTERMSIG(state), words);
    return status_set(STATUS_IO, "ffmpeg failed with exit code %d: %s", WEXITSTATUS(state),
                      words[0] ? words : "it gave no reason");
}

static Status run(Movie *m, const char *path, const uint8_t *frames, int64_t bytes, int64_t width,
                  int64_t height, double fps) {
    TRY(start(m, width, height, fps));
    TRY(finish(m, feed(m->pipe, frames, bytes)));
    if (rename(m->temporary, path) != 0) return status_errno("cannot rename to %s", path);
    return STATUS_OK;
}

Status movie_write(const char *path, const uint8_t *frames, int64_t count, int64_t width,
                   int64_t height, double fps) {
    Movie m = {.child = -1, .pipe = -1, .said = -1};
    char target[4300], *name = target + 5;
    FILE *said = tmpfile();
    if (said == NULL) return status_errno("cannot make a temporary file for ffmpeg");
    m.said = fileno(said);
    fcntl(m.said, F_SETFD, FD_CLOEXEC);
    snprintf(target, sizeof target, "file:%s.tmp-%ld-0", path, (long)getpid());
    m.target = target;
    m.temporary = name;
    Status s = run(&m, path, frames, count * width * height * 3, width, height, fps);
    if (m.pipe >= 0) close(m.pipe);
    if (s != STATUS_OK) unlink(name);
    fclose(said);
    return s;
}
