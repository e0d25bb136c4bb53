// SPDX-License-Identifier: Apache-2.0
// whole_file.hpp - a file that is written as a whole or not at all.
//
// Model    Written as a draft beside its place and renamed into it, so that what lay there before stays until the new
//          one is complete. A link is followed, and a file that is there keeps its mode. What is no regular file (a
//          pipe, a terminal, a device) is written straight.
// Threads  One at a time for each object. Any number of them, of any processes, may have the same path: the last one
//          that is finished stays.
// Failure  errno's number; 0 is success. Throws std::bad_alloc.
#pragma once

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace xmm {

// Where the file of a path comes to lie.
struct file_place {
    std::string path;          // behind links, also such as lead to nothing yet
    int error = 0;             // errno's number: no file can be there
    bool is_there = false;     // a file whose mode is kept
    bool is_straight = false;  // no regular file: nothing is made beside it
    // EINVAL: the name of an open descriptor that is a file, as /dev/stdout may be
    bool is_open_here = false;
    mode_t mode = 0;

    [[nodiscard]] static file_place of(const std::string& path) {
        file_place found;
        struct stat there;
        found.is_there = ::stat(path.c_str(), &there) == 0;
        if (!found.is_there && errno != ENOENT) {
            found.error = errno;
            return found;
        }
        found.path = path;
        found.is_straight = found.is_there && !S_ISREG(there.st_mode);
        if (!found.is_straight) {
            found.mode = found.is_there ? there.st_mode & 07777 : 0;
            found.follow_links();
        }
        return found;
    }

private:
    // Not one of the kernel's own links to an open file (/dev/stdout, /proc/self/fd): its text need not name that file,
    // and another one in its place would not be open there.
    void follow_links() {
        constexpr auto procfs = 0x9fa0;  // PROC_SUPER_MAGIC
        std::filesystem::path place = path;
        std::error_code unread;
        for (int links = 0; links < 40 && std::filesystem::is_symlink(place, unread); ++links) {
            const std::filesystem::path folder =
                place.has_parent_path() ? place.parent_path() : ".";
            struct statfs system;
            is_open_here = ::statfs(folder.c_str(), &system) == 0 && system.f_type == procfs;
            if (is_open_here) {
                error = EINVAL;
                return;
            }
            place = place.parent_path() / std::filesystem::read_symlink(place, unread);
        }
        path = place.string();
    }
};

class whole_file {
public:
    explicit whole_file(const std::string& path) : place_{file_place::of(path)} {
        error_ = place_.error;
        if (error_ == 0) {
            error_ = place_.is_straight ? open_straight() : open_draft();
        }
    }
    whole_file(const whole_file&) = delete;
    whole_file& operator=(const whole_file&) = delete;
    // What is not finished leaves no trace.
    ~whole_file() {
        if (file_ >= 0) {
            ::close(file_);
        }
        if (!draft_.empty()) {
            ::unlink(draft_.c_str());
        }
    }

    // How opening it went: errno's number, or 0.
    [[nodiscard]] int error() const noexcept { return error_; }
    [[nodiscard]] const file_place& place() const noexcept { return place_; }
    // For write(); closed by this object. -1 after an error.
    [[nodiscard]] int descriptor() const noexcept { return file_; }

    // All is written: puts it in its place. errno's number, or 0. Not a second time.
    [[nodiscard]] int finish() noexcept {
        const bool has_draft = !draft_.empty();
        // Not before: until it is complete, nobody else need read it.
        if (has_draft && place_.is_there && ::fchmod(file_, place_.mode) != 0) {
            return errno;
        }
        // A full disk may show no earlier than here.
        if (::close(std::exchange(file_, -1)) != 0) {
            return errno;
        }
        if (has_draft && ::rename(draft_.c_str(), place_.path.c_str()) != 0) {
            return errno;
        }
        draft_.clear();
        return 0;
    }

private:
    // A new file: what others have put there, a link above all, is not opened, and no other run writes into it.
    int open_draft() {
        constexpr unsigned most_tries = 1000;
        // Not the path with an ending: a name may be as long as names can be.
        const std::string folder = place_.path.substr(0, place_.path.rfind('/') + 1);
        for (unsigned tries = 0; tries < most_tries; ++tries) {
            std::string name = folder + "xmm-" + std::to_string(::getpid()) + "-" +
                               std::to_string(next_number()) + ".part";
            file_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                           place_.is_there ? 0600 : 0666);
            if (file_ >= 0) {
                draft_ = std::move(name);
                return 0;
            }
            if (errno != EEXIST) {
                return errno;
            }
        }
        return EEXIST;
    }
    // Nothing is made or cut short here: should a file have come there meanwhile, it is left as it is.
    int open_straight() noexcept {
        file_ = ::open(place_.path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
        struct stat opened;
        if (file_ < 0) {
            return errno;
        }
        if (::fstat(file_, &opened) != 0 || S_ISREG(opened.st_mode)) {
            ::close(std::exchange(file_, -1));
            return EBUSY;
        }
        return 0;
    }
    // One count for each shared object is enough: a name that another one has taken is passed over.
    static unsigned next_number() noexcept {
        static std::atomic<unsigned> last{0};
        return last.fetch_add(1, std::memory_order_relaxed);  // relaxed: only that it differs
    }

    const file_place place_;
    std::string draft_;  // empty: written straight, or in its place
    int file_ = -1;
    int error_ = 0;
};

}  // namespace xmm
